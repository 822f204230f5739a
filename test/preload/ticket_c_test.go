package preload

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// python is a server with processes and threads, until its input ends.
const python = `
import os, signal, socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
def serve():
    while True:
        plain, _ = listener.accept()
        try:
            with context.wrap_socket(plain, server_side=True) as s:
                s.recv(100)
                s.sendall(b"hello")
        except OSError:
            pass
child = os.fork() # OpenSSL's locks are not for processes that fork while threads work
for _ in range(4): threading.Thread(target=serve, daemon=True).start()
if child == 0: signal.pause()
print("port", listener.getsockname()[1], flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
`

// The file changes while they work; each process looks at it for itself.
func TestThreadsAndProcessesFollowTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := certificate(t, dir)
	s := (&server{file: filepath.Join(dir, "web.json"), say: askHTTP}).rotate(t, 7, 1)
	command := exec.Command(installed(t, "python3"), "-c", python, cert, key)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.process = &process{Cmd: command}
	command.Env = append(os.Environ(), preloaded(tickets(t), s.file)...)
	command.Stdout, command.Stderr = &s.process.said, &s.process.said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("%v: %s", err, s.process.said.String())
		}
	})
	s.listening(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			c := client([]uint16{tls.VersionTLS12, tls.VersionTLS13}[i%2])
			for j := range 25 {
				if resumed, _, err := s.visit(c); err != nil || resumed != (j > 0) {
					t.Errorf("connection %d resumed %v: %v", j, resumed, err)
				}
			}
		})
	}
	s.rotate(t, 7, 2)
	group.Wait()
	c := client(tls.VersionTLS13)
	for i := range 10 {
		if _, hello, err := s.visit(c); err != nil || i > 0 && named(hello.Session(), 2) != 7 {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	s.complained(t)
}

// compile builds a program that includes sources of preload.
func compile(t *testing.T, text string, options ...string) (program string) {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "program.c"), filepath.Join(dir, "program")
	here, err := filepath.Abs("../../preload")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-DFOLLOW_SECONDS=0", "-I", here, "-o", program, source}, options...)
	if said, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return program
}

// Of a file with more keys than there is room for the first are read; of one that is cut off, all or nothing, and nothing beyond its end.
func TestListsOfKeysAreReadAsFarAsTheyGo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "web.json")
	var epochs []byte
	for epoch := range byte(17) {
		epochs = append(epochs, epoch)
	}
	write(t, file, fleetFile(7, epochs...))
	program := compile(t, `#include "ticket.c"
int main(int count, char **arguments)
{
	static char whole[FILE_MAX];
	FILE *opened = fopen(arguments[count - 1], "r");
	size_t length = fread(whole, 1, sizeof(whole), opened), begun, ended;
	int wrong = 0;

	begun = strstr(whole, "\"ticket_keys\"") - whole;
	ended = strchr(whole, ']') + 1 - whole;
	for (size_t cut = 0; cut <= length; cut++) {
		char *text = strndup(whole, cut);
		const char *refused = take(text);

		if (cut > begun + 20 && cut < ended && !refused)
			wrong = printf("%zu of %zu bytes are taken\n", cut, length);
		free(text);
	}
	if (current.keys != KEYS || current.key[0][0] != 100 || current.key[KEYS - 1][0] != 115)
		wrong = printf("%d keys, from %d to %d\n", current.keys, current.key[0][0], current.key[KEYS - 1][0]);
	return !!wrong;
}`, "-fsanitize=address,undefined")
	if said, err := exec.Command(program, file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// A process that is forked off while a thread is about to make a ticket can make tickets.
func TestForkedProcessesInheritNoLockedLock(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "web.json")
	write(t, file, ticketFile(7, 1))
	program := compile(t, `#include "ticket.c"
#include <sys/wait.h>
static void *look_on(void *unused)
{
	struct tickets tickets;

	while (look(&tickets))
		;
	return unused;
}
int main(void)
{
	pthread_t thread;
	int status, wrong = 0;

	for (int i = 0; i < 3; i++)
		pthread_create(&thread, 0, look_on, 0);
	for (int i = 0; i < 60 && !wrong; i++) {
		if (fork() == 0) {
			struct tickets tickets;

			alarm(30); /* ends one that waits for ever */
			_exit(!look(&tickets) || tickets.server != 7);
		}
		wrong = wait(&status) < 0 || status;
	}
	return wrong;
}
`)
	command := exec.Command(program)
	command.Env = append(os.Environ(), "BALLAST_TICKETS="+file)
	if said, err := command.CombinedOutput(); err != nil || len(said) != 0 {
		t.Errorf("%v: %s", err, said)
	}
}

// Names of session_id.h are those of internal/algo/sessionid.
func TestNamesInCEqualTheGoldenVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../golden/sessionid.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Key, Nonce, Name string
		ID               uint16
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) < 32 {
		t.Fatal(len(vectors), err)
	}
	program := compile(t, `#define _GNU_SOURCE
#include "agent_file.h"
#include "session_id.h"
int main(void)
{
	char key[200], nonce[200];
	unsigned char bytes[NAME_KEY_LENGTH], name[NAME_LENGTH];
	unsigned id;

	while (scanf("%199s %199s %u", key, nonce, &id) == 3) {
		struct name_key loaded;

		bytes_of(key, bytes, sizeof(bytes));
		bytes_of(nonce, name, sizeof(name));
		loaded = name_key_of(bytes);
		name_seal(&loaded, name, id);
		for (int i = 0; i < NAME_LENGTH; i++)
			printf("%02x", name[i]);
		printf(" %u", name_open(&loaded, name));
		name[id % NAME_LENGTH] ^= 1 << id / NAME_LENGTH % 8;
		printf(" %u\n", name_open(&loaded, name));
	}
}
`)
	var in, want strings.Builder
	for _, v := range vectors {
		fmt.Fprintln(&in, v.Key, v.Nonce, v.ID)
		fmt.Fprintln(&want, v.Name, v.ID, 0)
	}
	command := exec.Command(program)
	command.Stdin = strings.NewReader(in.String())
	if said, err := command.Output(); err != nil || string(said) != want.String() {
		t.Errorf("%v, have\n%swant\n%s", err, said, want.String())
	}
}
