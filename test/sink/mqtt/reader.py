"""A subscriber with the client of another project: its session outlives the broker's restarts."""
import threading

from sinklib import PATIENCE, NotRun

try:
    from paho.mqtt import client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
except ImportError:
    paho = None

FOR_EVER = 0xFFFFFFFF
SYNC = "sync/event/sync"     # kills.py reads +/event/#


class Reader:
    """Keeps (topic, properties as a dict, payload) of each message; what the broker only repeats to it is left out."""

    def __init__(self, port, pattern, qos=1, client_id="judge", **login):
        if paho is None:
            raise NotRun("the client of test/sink/mqtt/requirements.txt is not there")
        self.got, self.seen, self.lock = [], set(), threading.Lock()
        self.pattern, self.qos = pattern, qos
        self.subscribed, self.caught = threading.Event(), threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        if login:
            self.client.username_pw_set(login["user"], login["password"])
        self.client.on_connect = lambda c, *_: c.subscribe(self.pattern, qos=self.qos)
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self.client.on_message = self.take
        self.client.reconnect_delay_set(1, 1)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = FOR_EVER
        properties.ReceiveMaximum = 65535
        self.client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self.client.loop_start()
        assert self.subscribed.wait(PATIENCE), "no SUBACK"

    def take(self, client, _, m):
        if m.topic == SYNC:
            self.caught.set()
            return
        fields = dict(m.properties.UserProperty)
        with self.lock:
            one = m.topic, fields["Event-Id"]
            if not (m.dup and one in self.seen):
                self.got.append((m.topic, fields, m.payload))
            self.seen.add(one)

    def catch_up(self):
        """Wait for a message that comes behind all that the broker has by now."""
        self.caught.clear()
        self.client.publish(SYNC, qos=1)
        assert self.caught.wait(PATIENCE), "the broker keeps messages"

    def messages(self):
        with self.lock:
            return list(self.got)

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()
