// A machine that leaves its fleet.
package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	askEvery  = 500 * time.Millisecond
	sayEvery  = 5 * time.Second
	askSteady = 4                // looks in a row that find nothing: reports of the last packets are on their way
	askTime   = 10 * time.Second // for controllers to answer
)

// Leave is how a machine leaves: what Join and the daemons have made is undone.
type Leave struct {
	Host
	Roles       []pki.Role
	StateDir    string
	Controllers []string // host:port; empty: those of the unit's options
	Deadline    time.Duration
	Force       bool // what lives is not waited for
	DryRun      bool
	Keep        bool // the machine stays a member, and comes back: nothing is revoked or forgotten, and no file is removed

	Confirm func(warnings []string) error                // an error: it is not meant
	Stop    func(ctx context.Context, unit string) error // ends a unit, now and at boot; nil: there are no units
	// Left is what a daemon that has ended would count, by what it has left pinned: an agent living connections with cookies, a load balancer packets
	// that were forwarded. known is false where nothing forwards.
	Left   func(n *Node) (count uint64, known bool, err error)
	Detach func(ctx context.Context, n *Node) error // removes what the daemon of a node has pinned
}

// Node is a role of this machine.
type Node struct {
	Role                               pki.Role
	Name, Instance                     string
	TLSDir, StateDir, RunDir, defaults string
	controllers                        []string
	client                             ballastv1connect.LeavingClient // nil: nobody can be asked
	unasked                            error                          // why
	fleet                              *ballastv1.LeavingDrainResponse
	before                             *ballastv1.LeavingDrainResponse // what fleet was before it was drained
	drained, offRing                   bool                            // by this run; offRing: its place on the ring
}

// learn takes over what controllers answer that have drained a node.
func (n *Node) learn(answer *ballastv1.LeavingDrainResponse) {
	n.fleet, n.drained, n.offRing = answer, true, n.offRing || answer.OnRing
}

func (n *Node) unit() string { return "ballast-" + string(n.Role) }

func (n *Node) what() string { return string(n.Role) + " " + n.Name }

// Run leaves with each role that the machine has.
func (l *Leave) Run(ctx context.Context) error {
	var nodes []*Node
	for _, role := range l.Roles {
		n, err := l.find(role)
		if err != nil {
			return err
		}
		if n != nil {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		l.say("this machine is no node: there is nothing to do")
		return nil
	}
	for _, n := range nodes {
		l.look(ctx, n)
		l.plan(ctx, n)
	}
	if l.DryRun {
		l.say("nothing was changed: this was a dry run")
		return nil
	}
	if err := l.Confirm(nil); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := l.drain(ctx, n); err != nil {
			return fmt.Errorf("%s goes on: %w", n.what(), err)
		}
	}
	for _, n := range nodes {
		if err := l.leave(ctx, n); err != nil {
			return fmt.Errorf("%s: %w: repair that, and run this again", n.what(), err)
		}
	}
	return nil
}

// find is the node of a role, by the options of its unit, or by the only certificate of the role; nil: there is none.
func (l *Leave) find(role pki.Role) (*Node, error) {
	n := &Node{Role: role, Instance: "default", TLSDir: l.TLSDir, StateDir: l.StateDir, RunDir: l.RunDir}
	n.defaults = l.defaults(n.unit())
	options, err := readOptions(n.defaults)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if options.has("-f") || options.has("--file") {
		return nil, fmt.Errorf("%s has a node that runs by a file, and belongs to no controller: see \"Remove\" in docs/run/install.md: nothing was changed", n.defaults)
	}
	options.into("--instance", &n.Instance)
	options.into("--tls-dir", &n.TLSDir)
	options.into("--state-dir", &n.StateDir)
	options.into("--run-dir", &n.RunDir)
	options.into("--name", &n.Name)
	if n.Name == "" {
		names, err := pki.NamesOf(n.TLSDir, role)
		switch {
		case err != nil:
			return nil, err
		case len(names) > 1:
			return nil, fmt.Errorf("%s has certificates of several of role %s (%s): remove those of others: nothing was changed", n.TLSDir, role, strings.Join(names, ", "))
		case len(names) == 1:
			n.Name = names[0]
		case options == nil:
			return nil, nil
		}
	}
	if n.controllers = l.Controllers; len(n.controllers) == 0 {
		list := ""
		if options.into("--controller", &list); list != "" {
			n.controllers = strings.Split(list, ",")
		}
	}
	n.connect()
	return n, nil
}

// connect makes a client, where there is a certificate and somebody to ask.
func (n *Node) connect() {
	if len(n.controllers) == 0 {
		n.unasked = errors.New("no controller is named: --controller does")
		return
	}
	credentials, err := pki.Load(n.TLSDir, n.Name, n.Role)
	if err != nil {
		n.unasked = err
		return
	}
	n.client = api.NewLeavingClient(n.controllers, credentials.Client())
}

// look asks controllers what they know of a node.
func (l *Leave) look(ctx context.Context, n *Node) {
	if n.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if n.fleet, n.unasked = n.client.Drain(ctx, &ballastv1.LeavingDrainRequest{Look: true}); n.unasked != nil {
		n.client = nil
	}
	n.before = n.fleet
}

// plan says what is to be done.
func (l *Leave) plan(ctx context.Context, n *Node) {
	if l.Keep {
		l.say("%s is taken off, and stays a member:", n.what())
	} else {
		l.say("%s leaves:", n.what())
	}
	if n.client == nil && l.Keep {
		l.say("  no controller is asked (%v): nothing is drained", n.unasked)
	} else if n.client == nil {
		l.say("  no controller is asked (%v): nothing is drained, and what remains to do there is listed at the end", n.unasked)
	} else {
		l.say("  it is drained by controllers %s", strings.Join(n.controllers, ", "))
		for _, line := range n.lives() {
			l.say("    %s", line)
		}
	}
	if text := l.count(ctx, n).String(); text != "" {
		l.say("    %s", text)
	}
	if l.Stop != nil {
		l.say("  %s is stopped and disabled", n.unit())
	}
	l.say("  the data path of instance %s is removed", n.Instance)
	if l.Keep {
		return
	}
	if n.client != nil {
		l.say("  its certificate is revoked, and it is forgotten as a node")
	}
	if files := n.files(); len(files) > 0 {
		l.say("  these are removed: %s", strings.Join(files, " "))
	}
}

// unitOptions are the words of a unit's options; nil: there is no such file.
type unitOptions []string

func readOptions(path string) (options unitOptions, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	options = unitOptions{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "SOURCE", "OPTIONS":
			for _, word := range strings.Fields(value) {
				flag, value, both := strings.Cut(word, "=")
				if options = append(options, flag); both {
					options = append(options, value)
				}
			}
		case "INSTANCE":
			options = append(options, "--instance", value)
		}
	}
	return options, nil
}

func (o unitOptions) has(flag string) bool { return slices.Contains(o, flag) }

// into sets a value where a flag is given; what is given several times is joined, as lists are.
func (o unitOptions) into(flag string, value *string) {
	var given []string
	for i, word := range o[:max(0, len(o)-1)] {
		if word == flag {
			given = append(given, o[i+1])
		}
	}
	if len(given) > 0 {
		*value = strings.Join(given, ",")
	}
}

// files are those of a node that are there. The authority's certificate goes with the last that needs it.
func (n *Node) files() (there []string) {
	state := filepath.Join(n.StateDir, n.Instance)
	list := []string{n.defaults, filepath.Join(state, string(n.Role)+"-revoked.json")}
	if n.Role == pki.LB {
		list = append(list, filepath.Join(state, "state.json"))
	} else {
		list = append(list, filepath.Join(state, "agent.json"), filepath.Join(state, "ticket.key"))
	}
	if n.Name != "" {
		list = append(list, pki.FilesOf(n.TLSDir, n.Name)...)
	}
	return slices.DeleteFunc(list, func(path string) bool { return absent(path) == nil })
}

// leave ends a node that nothing lives of. What is done already is left out.
func (l *Leave) leave(ctx context.Context, n *Node) error {
	if l.Stop != nil {
		if err := l.Stop(ctx, n.unit()); err != nil {
			return err
		}
	}
	if answers(ctx, n) {
		return fmt.Errorf("its daemon (instance %s) runs: end it", n.Instance)
	}
	if err := l.Detach(ctx, n); err != nil {
		return err
	}
	if l.Keep {
		l.say("%s is off. To undo that:", n.what())
		for _, line := range l.back(n) {
			l.say("  %s", line)
		}
		return nil
	}
	remains := l.depart(ctx, n)
	for _, path := range n.files() {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	os.Remove(filepath.Join(n.StateDir, n.Instance)) // if it is empty
	l.say("%s has left", n.what())
	for _, line := range remains {
		l.say("  remains to do: %s", line)
	}
	return nil
}

// back is how a node comes back that was taken off, as lines of a shell: what is no command, and what drained before this run, is a comment.
func (l *Leave) back(n *Node) (lines []string) {
	if l.Stop != nil {
		lines = append(lines, "systemctl enable --now "+n.unit())
	} else {
		lines = append(lines, "# start its daemon (instance "+n.Instance+")")
	}
	if !n.drained {
		return lines
	}
	undo := func(state, command string) {
		if active := model.StateActive.String(); state != active {
			command = fmt.Sprintf("# it was %s before this; if it is not to stay so: %s", state, command)
		}
		lines = append(lines, command)
	}
	for _, s := range n.before.GetServers() {
		undo(s.Server.State, fmt.Sprintf("ballast ctl server undrain %s %s", s.Service, s.Server.Name))
	}
	if node := n.before.GetNode(); node != nil {
		undo(node.State, "ballast ctl node undrain "+n.Name)
	}
	if n.offRing {
		lines = append(lines, "ballast ctl replica undrain "+n.Name)
	}
	return lines
}

// depart has controllers revoke the certificate, and returns what they could not do.
func (l *Leave) depart(ctx context.Context, n *Node) (remains []string) {
	const ctl = "`ballast ctl "
	if n.client != nil {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		answer, err := n.client.Leave(ctx, &ballastv1.LeaveRequest{})
		if n.unasked = err; err == nil {
			for _, line := range answer.Changes {
				l.say("  %s", line)
			}
			remains = answer.Remains
		}
	}
	if n.unasked != nil && n.Name != "" {
		remains = append(remains, fmt.Sprintf("controllers could not be asked (%v): %spki revoke %s --role %s`, then %snode forget %s`", n.unasked, ctl, n.Name, n.Role, ctl, n.Name))
	}
	switch {
	case n.fleet == nil && n.Role == pki.Agent:
		remains = append(remains, "take this machine's servers out: "+ctl+"server drain SERVICE SERVER`, then remove, and out of the fleet's file")
	case n.fleet == nil:
		remains = append(remains, fmt.Sprintf("if it is among the nodes: %snode remove %s`, and out of the fleet's file", ctl, n.Name))
	case n.fleet.Node != nil:
		remains = append(remains, fmt.Sprintf("%snode remove %s`, and out of the fleet's file", ctl, n.Name))
	}
	for _, s := range n.fleet.GetServers() {
		remains = append(remains, fmt.Sprintf("%sserver remove %s %s`, and out of the fleet's file", ctl, s.Service, s.Server.Name))
	}
	return remains
}
