"""A node that says what it was told of itself."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    time.sleep(float(context.run_config["client-seconds"]))
    me = {key: str(value) for key, value in context.node_config.items()}
    return Message(RecordDict({"config": ConfigRecord(me)}), reply_to=message)
