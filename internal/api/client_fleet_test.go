package api_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

func TestTheNextControllerIsAskedWhenOneIsGone(t *testing.T) {
	_, url := serveFleet(t, &apitest.Memory{})
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	fleet := api.NewFleetClient([]string{gone.Listener.Addr().String(), strings.TrimPrefix(url, "http://")}, nil)
	if _, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err != nil {
		t.Error(err)
	}
	fleet = api.NewFleetClient([]string{gone.Listener.Addr().String()}, nil)
	if _, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "reach a controller") {
		t.Errorf("all are gone: %v", err)
	}
}

// Promise: When a controller cannot carry out a command, `ctl` asks the next.
func TestTheNextControllerIsAskedWhenOneIsNotAble(t *testing.T) {
	cut := &failing{err: connect.NewError(connect.CodeUnavailable, errors.New("no leader"))}
	_, first := serveFleet(t, cut)
	memory := &apitest.Memory{}
	_, second := serveFleet(t, memory)
	fleet := api.NewFleetClient([]string{strings.TrimPrefix(first, "http://"), strings.TrimPrefix(second, "http://")}, nil)
	apply(t, fleet, web(at("10.0.0.1")))
	expect(t, "what the able one has", servers(t, fleet), "10.0.0.1=1 active")
	fleet = api.NewFleetClient([]string{strings.TrimPrefix(first, "http://")}, nil)
	if _, err := fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web"}); err == nil || err.Error() != "no leader" {
		t.Errorf("nobody is able: %v", err)
	}
}

// A controller that is killed in the midst of a change.
//
// Promise: A change that is not answered may have been carried out: `ctl` says so, exits with status 3, and does
// not retry.
func TestAChangeThatWasNotAnsweredMayHaveBeenCarriedOut(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		asked.Add(1)
		connection, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		connection.Close()
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	fleet := api.NewFleetClient([]string{address, address}, nil)
	_, err := fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web"})
	if connect.CodeOf(err) != connect.CodeUnknown || !strings.Contains(err.Error(), "may or may not have been carried out") || asked.Load() != 1 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
	if _, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); connect.CodeOf(err) == connect.CodeUnknown {
		t.Errorf("a question: %v", err)
	}
	if _, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{DryRun: true}); connect.CodeOf(err) == connect.CodeUnknown {
		t.Errorf("a dry run: %v", err)
	}
	open := &failing{err: connect.NewError(connect.CodeUnknown, errors.New("it may or may not have been carried out"))}
	_, first := serveFleet(t, open)
	_, second := serveFleet(t, &apitest.Memory{})
	fleet = api.NewFleetClient([]string{strings.TrimPrefix(first, "http://"), strings.TrimPrefix(second, "http://")}, nil)
	if _, err := fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web"}); connect.CodeOf(err) != connect.CodeUnknown {
		t.Errorf("another controller was asked to do it again: %v", err)
	}
}
