"""Connection ids that name this server, for aioquic behind Ballast (draft-ietf-quic-load-balancers-21).

    ids = ballast_ids.install("/run/ballast/quic/default/h3.json")
    configuration = QuicConfiguration(is_client=False, connection_id_length=ids.length, ...)

aioquic has no hook: it draws ids by os.urandom(connection_id_length). Tested with 1.7. For single-pass and plain; a Retry's id is
aioquic's own, so that every server of the service needs the same token key with retry=True.
"""

import json
import os
import time

import aioquic.quic.connection
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


class Ids:
    """Makes ids by the file that `ballast agent` keeps, and follows it. A file that is damaged or gone changes nothing."""

    def __init__(self, path):
        self.path = path
        self._read()
        self.length = 1 + len(self._server) + self._nonce
        self._looked = time.monotonic()

    def _read(self):
        stamp = os.stat(self.path)
        with open(self.path, "rb") as file:
            said = json.load(file)
        server, nonce = bytes.fromhex(said["server_id"]), int(said["nonce_length"])
        block = None
        if said["algorithm"] == "single-pass" and len(server) + nonce == 16:
            block = Cipher(algorithms.AES(bytes.fromhex(said["key"])), modes.ECB())
        elif said["algorithm"] != "plain":
            raise ValueError(f"{self.path}: {said['algorithm']} is not for this program")
        if getattr(self, "length", 1 + len(server) + nonce) != 1 + len(server) + nonce:
            raise ValueError(f"{self.path}: the length of ids has changed: start the program again")
        self._config, self._server, self._nonce, self._block = said["config"], server, nonce, block
        self._stamp = (stamp.st_ino, stamp.st_mtime_ns)

    def _follow(self):
        now = time.monotonic()
        if now - self._looked < 1:
            return
        self._looked = now
        try:
            stamp = os.stat(self.path)
            if (stamp.st_ino, stamp.st_mtime_ns) != self._stamp:
                self._read()
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def new(self):
        self._follow()
        plain = self._server + os.urandom(self._nonce)
        if self._block:
            encryptor = self._block.encryptor()
            plain = encryptor.update(plain) + encryptor.finalize()
        return bytes([self._config << 5 | self.length - 1]) + plain


class _Os:
    """The module os, but for random bytes of the length of ids."""

    def __init__(self, ids):
        self._ids = ids

    def __getattr__(self, name):
        return getattr(os, name)

    def urandom(self, size):
        return self._ids.new() if size == self._ids.length else os.urandom(size)


def install(path):
    """Lets all of aioquic's servers in this process issue ids by the file."""
    ids = Ids(path)
    aioquic.quic.connection.os = _Os(ids)
    return ids
