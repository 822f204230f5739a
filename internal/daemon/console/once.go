package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/factors"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants of what pages ask for once, as somebody opens it.
const (
	onceWait  = 20 * time.Second // for others who ask, and then for the answer
	linesMost = 200              // of a difference
)

// once serves an answer as JSON, one at a time: some take a daemon as long as a look.
func (c *Console) once(turn chan struct{}, answer func(context.Context, url.Values) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		waits, cancel := context.WithTimeout(r.Context(), onceWait)
		defer cancel()
		select {
		case turn <- struct{}{}:
		case <-waits.Done():
			http.Error(w, "others ask this console just now: try again", http.StatusServiceUnavailable)
			return
		}
		found, err := inTurn(turn, r, answer)
		if err != nil {
			http.Error(w, model.ForPeople(textOf(err)), statusOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(model.ForPeople(string(marshal(found))))) // the client may have gone
	}
}

// inTurn answers one whose turn it is, and has the whole time for it, and ends the turn: whoever does not read its answer keeps nobody waiting.
func inTurn(turn chan struct{}, r *http.Request, answer func(context.Context, url.Values) (any, error)) (any, error) {
	defer func() { <-turn }()
	ctx, cancel := context.WithTimeout(r.Context(), onceWait)
	defer cancel()
	return answer(ctx, r.URL.Query())
}

// textOf is an error without the name of its code.
func textOf(err error) string {
	var refused *connect.Error
	if errors.As(err, &refused) {
		return refused.Message()
	}
	return err.Error()
}

func statusOf(err error) int {
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument:
		return http.StatusBadRequest
	case connect.CodeNotFound:
		return http.StatusNotFound
	}
	return http.StatusServiceUnavailable
}

// difference is what changed from one revision to another.
type difference struct {
	Changes []string `json:"changes"`
	More    int      `json:"more,omitempty"` // that are left out
}

// diff answers /diff?from=REVISION&to=REVISION; 0: now.
func (s Source) diff(ctx context.Context, query url.Values) (any, error) {
	if s.Diff == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("this daemon keeps no history: controllers do"))
	}
	var revisions [2]uint64
	for i, name := range []string{"from", "to"} {
		revision, err := strconv.ParseUint(query.Get(name), 10, 64)
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s: %q is no revision", name, query.Get(name)))
		}
		revisions[i] = revision
	}
	lines, err := s.Diff(ctx, revisions[0], revisions[1])
	shown := min(len(lines), linesMost)
	return difference{append([]string{}, lines[:shown]...), len(lines) - shown}, err
}

// reasons are why a server gets what it gets.
type reasons struct {
	At      int64            `json:"at"` // when this daemon looked
	Factors []factors.Factor `json:"factors"`
}

// server answers /server?service=NAME&id=ID: why a server gets what it gets, as of the newest look.
func (c *Console) server(_ context.Context, query url.Values) (any, error) {
	v, at := c.now.seen()
	if v == nil {
		return nil, errors.New("this daemon has not looked yet: try again")
	}
	name := model.FromPeople(query.Get("service"))
	id, err := strconv.ParseUint(query.Get("id"), 10, 16)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("id: %q is none of a server", query.Get("id")))
	}
	known := factors.Known{Now: at}
	for i := range v.Services {
		if v.Services[i].Name == name {
			known.Service = &v.Services[i].Service
		}
	}
	var asked *ballastv1.ServerStatus
	for i := range v.Servers {
		if s := v.Servers[i].ServerStatus; s.Service == name {
			known.Servers = append(known.Servers, s)
			if uint64(s.Server.Id) == id {
				asked = s
			}
		}
	}
	if known.Service == nil || asked == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("it is not there any more"))
	}
	for _, n := range v.Nodes {
		if n.Role == string(pki.LB) && n.Ready == "lost" {
			known.Lost = append(known.Lost, n.Name)
		}
	}
	return reasons{at.UnixMilli(), known.Of(asked)}, nil
}
