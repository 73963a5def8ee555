"""own-training-loop: what runs at every site. The loop in `train` is yours to change."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

from fedbridge.engines import flower as fed
from own_loop.rows import CLASSES, INPUTS, SITES, TARGET, network, rows_of

BATCH = 4
app = ClientApp()


def site_of(context: Context) -> tuple[str, str]:
    """Name and role of this node: a real one is told its name, simulated ones have numbers."""
    node = context.node_config
    name = str(node["site"]) if "site" in node else SITES[int(node["partition-id"])]
    return name, "target" if name == TARGET else "source"


def received(message: Message) -> nn.Module:
    """The network as the message has it."""
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who is here, and how many rows there are."""
    site, role = site_of(context)
    (x, _), (x_test, _) = rows_of(site)
    return fed.reply_to_hello(
        message,
        site=site,
        role=role,
        num_examples=len(x),
        num_test=len(x_test),
        input_shape=(INPUTS,),
        n_classes=CLASSES,
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of plain descent, in a loop of one's own."""
    site, role = site_of(context)
    (x, y), _ = rows_of(site)
    model, changes = received(message), []
    lr = message.content.config_records["config"]["lr"]
    assert isinstance(lr, float)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(xs), ys)
        loss.backward()
        optimizer.step()
        changes.append(nn.utils.parameters_to_vector(model.parameters()).detach() - before)
    return fed.reply_to_train(
        message,
        model,
        site=site,
        role=role,
        num_examples=len(x),
        steps=len(changes),
        lr=lr,
        loss=loss.item(),
        batch_updates=changes if role == "target" else (),  # its noise, for rules that weigh trust
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Only the target is asked."""
    site, _ = site_of(context)
    _, (x, y) = rows_of(site)
    with torch.no_grad():
        outputs = received(message).eval()(x)
    return fed.reply_to_evaluate(
        message,
        site=site,
        num_examples=len(x),
        loss=functional.cross_entropy(outputs, y).item(),
        accuracy=100 * (outputs.argmax(1) == y).double().mean().item(),
    )
