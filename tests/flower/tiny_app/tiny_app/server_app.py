"""Ask every node who it is, and write down what they said."""

import json
import sys
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
POLL = 0.1


@app.main()
def main(grid: Grid, context: Context) -> None:
    while len(nodes := list(grid.get_nodes())) < int(context.run_config["nodes"]):
        time.sleep(POLL)
    question = {"payload": bytes(int(context.run_config["payload"]))}
    waiting = set(
        grid.push_messages(
            [
                Message(RecordDict({"config": ConfigRecord(question)}), node.node_id, "query")
                for node in nodes[: int(context.run_config["nodes"])]
            ]
        )
    )
    answers = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            answers.append(dict(reply.content["config"]))
        time.sleep(POLL)
    named = {node.name: node.public_key.decode(errors="replace") for node in nodes}
    Path(str(context.run_config["out"])).write_text(
        json.dumps({"nodes": named, "answers": answers})
    )
    sys.stdout.write("all nodes answered\n")
