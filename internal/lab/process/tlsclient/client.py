"""Begins a TLS session and resumes it: HOST PORT VERSION CONNECTIONS SECONDS PAUSE; what to say is on standard input. Prints what it is answered in each connection."""
import socket
import ssl
import sys
import time

host, port, version, connections, patient, pause = sys.argv[1:]
question = sys.stdin.buffer.read()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
session = None
for _ in range(int(connections)):
    if session:
        time.sleep(float(pause))
    with socket.create_connection((host, int(port)), timeout=float(patient)) as plain:
        with context.wrap_socket(plain, server_hostname="lab", session=session) as conn:
            conn.sendall(question)
            answer = b"".join(iter(lambda: conn.recv(65536), b""))
            session = conn.session
            print("Reused," if conn.session_reused else "New,", conn.version())
            print(answer.decode(), end="\n--\n")
