package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/store"
)

const patience = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// memberVariable has the member that a process is to be, as JSON: this program is also the etcd of its tests.
const memberVariable = "BALLAST_TEST_ETCD_MEMBER"

// files are certificates in PEM; without them anybody may connect.
type files struct{ CA, Certificate, Key string }

// member is a process of an external etcd.
type member struct {
	Name, Dir, Initial string
	Peer, Client       string
	TLS                files
	process            *exec.Cmd
}

func TestMain(m *testing.M) {
	if dir, is := os.LookupEnv(damagedVariable); is {
		fmt.Fprintln(os.Stderr, openAndFill(dir, os.Getenv(roomVariable)))
		os.Exit(1)
	}
	if text, is := os.LookupEnv(memberVariable); is {
		fmt.Fprintln(os.Stderr, beMember(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// beMember runs until it is killed.
func beMember(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	config := embed.NewConfig() // with the defaults of etcd
	config.Name, config.Dir, config.InitialCluster = m.Name, m.Dir, m.Initial
	if m.TLS != (files{}) {
		config.ClientTLSInfo = transport.TLSInfo{TrustedCAFile: m.TLS.CA, CertFile: m.TLS.Certificate, KeyFile: m.TLS.Key, ClientCertAuth: true}
	}
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(quiet, new(atomic.Bool)))
	config.UnsafeNoFsync = true
	peer, errPeer := url.Parse(m.Peer)
	client, errClient := url.Parse(m.Client)
	if errPeer != nil || errClient != nil {
		return fmt.Errorf("%v, %v", errPeer, errClient)
	}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	return <-server.Err()
}

// loopbackURL has a port that is free, and that no outgoing connection gets until somebody listens there.
func loopbackURL(t *testing.T, scheme string) string {
	t.Helper()
	for {
		const first, ephemeral = 10000, 32768
		address := fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(ephemeral-first))
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		return scheme + "://" + address
	}
}

// cluster starts an external etcd on loopback; clients need certificates if there are files.
func cluster(t *testing.T, size int, tls files) (members []*member, endpoints []string) {
	t.Helper()
	scheme := "http"
	if tls != (files{}) {
		scheme = "https"
	}
	var initial []string
	for i := range size {
		m := &member{Name: fmt.Sprint("etcd-", i), Dir: t.TempDir(), Peer: loopbackURL(t, "http"), Client: loopbackURL(t, scheme), TLS: tls}
		if err := os.Chmod(m.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		members, endpoints = append(members, m), append(endpoints, m.Client)
		initial = append(initial, m.Name+"="+m.Peer)
	}
	for _, m := range members {
		m.Initial = strings.Join(initial, ",")
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		m.process = exec.Command(os.Args[0])
		m.process.Env = append(os.Environ(), memberVariable+"="+string(text))
		m.process.Stderr = t.Output()
		m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := m.process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.kill)
	}
	return members, endpoints
}

func (m *member) kill() {
	m.process.Process.Kill()
	m.process.Wait()
}

// connected waits for a cluster that is being started.
func connected(t *testing.T, o ConnectOptions) (s *Store) {
	t.Helper()
	o.Log = quiet
	await.Nil(t, "the cluster answers", func() (err error) {
		s, err = Connect(t.Context(), o)
		return err
	})
	t.Cleanup(func() { s.Close() })
	return s
}

func connect(t *testing.T, endpoints ...string) *Store {
	t.Helper()
	return connected(t, ConnectOptions{Endpoints: endpoints})
}

// It is cut off right after etcd has taken the entry: without the answer it does not know the lease, and cannot tell when it has ended.
func TestAControllerDoesNotBelieveAnEntryOfItsOwnThatWasNotAnswered(t *testing.T) {
	m := &membership{updates: make(chan []store.Member, 1), self: entry{store.Member{Name: "b"}, "this one"}}
	m.listed = map[string]entry{"1": {store.Member{Name: "a"}, "another"}, "2": {store.Member{Name: "b", Term: 2}, "a former life"}, "3": {store.Member{Name: "b", Term: 3}, "this one"}}
	for own, want := range map[string]uint64{"": 2, "3": 3} {
		m.own, m.last = lease{key: own}, nil
		m.publish()
		if list := <-m.updates; len(list) != 2 || list[1].Term != want {
			t.Errorf("with the lease of %q it is told %v", own, list)
		}
	}
}
