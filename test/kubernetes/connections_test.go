package kubernetes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
)

// Implementation constants of connections that live. Each asks its pod something now and then; the answer names the pod and what was asked.
const (
	questionLen = 16              // number of the connection, and of the question in it
	answerLen   = 24              // that of the pod, and the question
	pause       = 4 * time.Second // between two questions of one, on average
	dialers     = 32              // at once: each holds a thread
)

// A pod answers at an address of a node's pods. It is a process of its own, of this program.
type pod struct {
	number        uint64
	node, address string
	process       *process
	ended         atomic.Bool
}

// podVariable names the address and the number that make this program a pod.
const podVariable = "BALLAST_TEST_POD"

func TestMain(m *testing.M) {
	if text := os.Getenv(podVariable); text != "" {
		serveEcho(text)
		return
	}
	if text := os.Getenv(containerVariable); text != "" {
		runContainer(text)
	}
	m.Run()
}

// startEcho starts a pod with the count-th address of a node's pods.
func (c *cluster) startEcho(number uint64, node string, count int) *pod {
	p := &pod{number: number, node: node, address: podAddress(node, count)}
	if count > 0 {
		c.must(c.spaces[podsOf(node)].AddAddress("eth0", netip.MustParsePrefix(p.address+"/24")))
	}
	p.process = c.start(podsOf(node), "/usr/bin/env", fmt.Sprintf("%s=%s:8080 %d", podVariable, p.address, number), os.Args[0])
	return p
}

func (c *cluster) awaitPod(p *pod) {
	await.True(c, p.address+" listens", func() bool { return p.process.last() != "" })
}

// end ends the pod and its connections.
func (p *pod) end() {
	p.ended.Store(true)
	p.process.end(syscall.SIGKILL)
}

func serveEcho(where string) {
	address, text, _ := strings.Cut(where, " ")
	number, err := strconv.ParseUint(text, 10, 64)
	var listener net.Listener
	if err == nil {
		listener, err = net.Listen("tcp", address)
	}
	fmt.Println("listens:", err)
	for err == nil {
		var connection net.Conn
		if connection, err = listener.Accept(); err == nil {
			go serve(connection, number)
		}
	}
	fmt.Println(err)
}

// serve answers the questions of a connection, as long as they are the ones that it is to have.
func serve(connection net.Conn, number uint64) {
	defer connection.Close()
	answer := binary.BigEndian.AppendUint64(nil, number)
	question := make([]byte, questionLen)
	var client uint64
	for next := uint64(0); ; next++ {
		if _, err := io.ReadFull(connection, question); err != nil {
			return
		}
		if next == 0 {
			client = binary.BigEndian.Uint64(question)
		}
		if binary.BigEndian.Uint64(question) != client || binary.BigEndian.Uint64(question[8:]) != next {
			return
		}
		if _, err := connection.Write(append(answer, question...)); err != nil {
			return
		}
	}
}

// A step is what has become of connections while something changed.
type step struct {
	Name    string   `json:"step"`
	Broken  int      `json:"broken"`        // though their pod lived
	Ended   int      `json:"ended"`         // with their pod
	Refused int      `json:"refused"`       // tries to begin one that failed
	Seconds float64  `json:"seconds"`       // until all had an answer that was asked for after the change
	Longest float64  `json:"longest"`       // seconds that one waited for an answer, a new one with its handshake
	Why     []string `json:"why,omitempty"` // the first that broke or were refused
	begun   time.Time
}

// A load is connections that are kept alive: who loses one begins another.
type load struct {
	*cluster
	target   string
	pods     func(number uint64) *pod
	patience time.Duration // for an answer

	lock  sync.Mutex
	steps []*step
	asked chan struct{} // closed: all are to ask now
	round int           // counts these

	done    chan struct{}
	running sync.WaitGroup
	dialing chan struct{}
	clients []*keeper
}

// A keeper keeps one connection. It has answers to all that was asked up to a round.
type keeper struct {
	number uint64
	answer atomic.Int64
	renew  atomic.Bool // the connection is to be closed, and another begun
}

// startLoad begins connections to the pods of an address.
func (c *cluster) startLoad(count int, address string, patience time.Duration, pods func(uint64) *pod) *load {
	c.must(c.spaces["client"].Sysctl("net.ipv4.ip_local_port_range", "10000 65000"))
	l := &load{cluster: c, target: address + ":80", pods: pods, patience: patience, asked: make(chan struct{}), done: make(chan struct{}), dialing: make(chan struct{}, dialers)}
	l.begin("begin")
	for i := range count {
		one := &keeper{number: uint64(i + 1)}
		l.clients = append(l.clients, one)
		l.running.Go(func() { l.keep(one) })
	}
	return l
}

// stop ends all connections. It is to come before the pods end.
func (l *load) stop() {
	close(l.done)
	l.running.Wait()
}

func (l *load) begin(name string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.steps = append(l.steps, &step{Name: name, begun: time.Now()})
}

// verify has all connections ask, and waits until each has an answer; one that breaks, until the next one has.
func (l *load) verify() {
	l.Helper()
	l.lock.Lock()
	l.round++
	round := int64(l.round)
	close(l.asked)
	l.asked = make(chan struct{})
	l.lock.Unlock()
	await.Nil(l, "all connections have answers", func() error {
		missing := 0
		for _, one := range l.clients {
			if one.answer.Load() < round {
				missing++
			}
		}
		if missing > 0 {
			time.Sleep(10 * time.Millisecond) // a look is long
			return fmt.Errorf("%d have not", missing)
		}
		return nil
	})
	l.lock.Lock()
	last := l.steps[len(l.steps)-1]
	last.Seconds = time.Since(last.begun).Seconds()
	l.lock.Unlock()
}

// renew has every second connection end, and begin again.
func (l *load) renew() {
	for i, one := range l.clients {
		one.renew.Store(i%2 == 0)
	}
	l.verify() // with the old one
	l.verify()
}

var errRenewed = errors.New("is to begin again")

func (l *load) keep(one *keeper) {
	for {
		begun := time.Now()
		connection, err := l.connect()
		if err == nil {
			var at *pod
			at, err = l.converse(one, connection, begun)
			_ = connection.Close()
			if errors.Is(err, errRenewed) {
				continue
			}
			if err != nil && at != nil {
				l.count(err, at)
				continue
			}
		}
		if err != nil {
			l.count(err, nil)
		}
		select {
		case <-l.done:
			return
		default:
		}
	}
}

// connect dials, once there are not too many who do.
func (l *load) connect() (net.Conn, error) {
	l.dialing <- struct{}{}
	defer func() { <-l.dialing }()
	ctx, cancel := context.WithTimeout(background, l.patience)
	defer cancel()
	return l.dial("client")(ctx, "tcp", l.target)
}

// converse asks until the connection ends, and how; nil: the test does. The first answer is waited for since the connection was begun; at is its pod.
func (l *load) converse(one *keeper, connection net.Conn, begun time.Time) (at *pod, err error) {
	for next := uint64(0); ; next++ {
		l.lock.Lock()
		round, asked := l.round, l.asked
		l.lock.Unlock()
		if next > 0 {
			begun = time.Now()
		}
		number, err := l.ask(connection, one.number, next)
		if err != nil {
			return at, err
		}
		l.waited(time.Since(begun))
		if at == nil {
			at = l.pods(number)
		} else if number != at.number {
			return at, fmt.Errorf("pod %d answers", number)
		}
		one.answer.Store(int64(round))
		select {
		case <-asked:
		case <-time.After(pause/2 + rand.N(pause)):
		case <-l.done:
			return at, nil
		}
		if one.renew.CompareAndSwap(true, false) {
			return at, errRenewed
		}
	}
}

// ask asks one thing, and returns the pod that answers.
func (l *load) ask(connection net.Conn, client, number uint64) (pod uint64, err error) {
	question := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, client), number)
	answer := make([]byte, answerLen)
	if err := connection.SetDeadline(time.Now().Add(l.patience)); err != nil {
		return 0, err
	}
	if _, err := connection.Write(question); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(connection, answer); err != nil {
		return 0, err
	}
	if string(answer[8:]) != string(question) {
		return 0, fmt.Errorf("asked %x, the answer is to %x", question, answer[8:])
	}
	return binary.BigEndian.Uint64(answer), nil
}

func (l *load) waited(time time.Duration) {
	l.lock.Lock()
	defer l.lock.Unlock()
	now := l.steps[len(l.steps)-1]
	now.Longest = max(now.Longest, time.Seconds())
}

// count says in the step what became of a connection: at nil, it had no answer at all.
func (l *load) count(err error, at *pod) {
	l.lock.Lock()
	defer l.lock.Unlock()
	now := l.steps[len(l.steps)-1]
	switch {
	case at == nil:
		now.Refused++
	case at.ended.Load():
		now.Ended++
		return
	default:
		now.Broken++
		err = fmt.Errorf("at %s of %s: %w", at.address, at.node, err)
	}
	if len(now.Why) < 5 {
		now.Why = append(now.Why, err.Error())
	}
}

// sample begins connections, and says which pods answer how often.
func (l *load) sample(count int) (map[*pod]int, error) {
	found := map[*pod]int{}
	for range count {
		connection, err := l.connect()
		if err != nil {
			return nil, err
		}
		number, err := l.ask(connection, 0, 0)
		_ = connection.Close()
		if err != nil {
			return nil, err
		}
		found[l.pods(number)]++
	}
	return found, nil
}
