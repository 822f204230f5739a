package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

const updates = 400

// teller is a controller that tells a state, many weights and another state.
type teller struct{}

func (teller) Join(ctx context.Context, node *connect.BidiStream[ballastv1.FromNode, ballastv1.ToNode]) error {
	clientHello, err := node.Receive()
	if err != nil {
		return err
	}
	messages := []*ballastv1.ToNode{
		{Message: &ballastv1.ToNode_Welcome{Welcome: &ballastv1.Welcome{Controller: "c1 of " + clientHello.GetHello().Name}}},
		{Message: &ballastv1.ToNode_State{State: &ballastv1.State{}}},
	}
	for i := range updates {
		messages = append(messages, &ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{Weights: &ballastv1.Weights{Version: uint64(i)}}})
	}
	messages = append(messages, &ballastv1.ToNode{Message: &ballastv1.ToNode_State{State: &ballastv1.State{}}})
	for _, message := range messages {
		if err := node.Send(message); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// freePort is an address that nobody listens at.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestARelayLosesTheShareOfWeightsAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Init(dir, 2*time.Hour, false); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]pki.Role{"c1": pki.Controller, "lb1": pki.LB} {
		if err := pki.Issue(dir, pki.Request{Role: role, Name: name, Life: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	controller, err := pki.Load(dir, "c1", pki.Controller)
	if err != nil {
		t.Fatal(err)
	}
	node, err := pki.Load(dir, "lb1", pki.LB)
	if err != nil {
		t.Fatal(err)
	}
	routes := http.NewServeMux()
	routes.Handle(ballastv1connect.NewControlHandler(teller{}))
	server := &http.Server{Addr: freePort(t), Handler: routes, TLSConfig: controller.Server()}
	go server.ListenAndServeTLS("", "")
	defer server.Close()
	for _, one := range []struct {
		share       float64
		least, most int
	}{{0, updates, updates}, {0.25, updates / 2, updates - updates/8}, {1, 0, 0}} {
		t.Run(fmt.Sprint(one.share), func(t *testing.T) {
			address := freePort(t)
			options := Options{Listen: address, Controller: server.Addr, ControlledBy: "c1", Node: "lb1", TLSDir: dir}
			in, share := io.Pipe()
			ended := make(chan error)
			go func() { ended <- Run(t.Context(), in, options) }()
			fmt.Fprintln(share, one.share)
			fmt.Fprintln(share, one.share) // was read when the first has been obeyed
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			states, weights := 0, 0
			nodeclient.New(nodeclient.Options{
				Controllers: []string{address}, Credentials: node, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Hello: func() *ballastv1.Hello { return &ballastv1.Hello{Name: "lb1"} },
				OnState: func(string, *ballastv1.State) {
					if states++; states == 2 {
						cancel()
					}
				},
				OnWeights: func(string, *follow.Update) { weights++ },
			}).Run(ctx)
			if states != 2 || weights < one.least || weights > one.most {
				t.Errorf("%d of 2 states and %d of %d weights arrived", states, weights, updates)
			}
			share.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
