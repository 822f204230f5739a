// Services whose servers a source names.
package api

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// mayHaveSources refuses sources where nobody asks them: there are no controllers.
func (f *fleetAPI) mayHaveSources(wanted *model.Fleet) error {
	if f.desired.MakesKeys() {
		return nil
	}
	return wanted.CheckSourcesWithoutControllers()
}

// listed refuses to change by hand which servers a source names.
func listed(s *model.Service) error {
	if s.Source.IsZero() {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("servers of service %s come from %s, which would undo this: change them there, or drain the server", s.Name, s.Source))
}

// keepSourced gives a service that is to be applied the servers that its source has named; before it has named any, those that the service, or one that it takes
// the place of, had. A service that takes no place begins with those that are listed: it was there before.
func keepSourced(s *model.Service, earlier []*model.Service, n *fleet.Desired) {
	if s.Source.IsZero() || len(earlier) == 0 {
		return
	}
	from := earlier[0]
	if said := n.Base.Service(from.Name); said != nil { // without what operators have set since
		from = said
	}
	s.Servers = slices.Clone(from.Servers)
}

// ErrNoneLeft is that of an edit that would leave a service without a server that takes new connections.
var ErrNoneLeft = errors.New("it names no server that the service can have and that takes new connections: the last ones stay")

// ErrOtherSource is that of an edit whose service has another source by now, or is gone.
var ErrOtherSource = errors.New("the service has another source by now")

// Unfit is a server that a source names and a service cannot have, and why.
type Unfit struct {
	Server model.Server
	Why    error
}

// SetServers is the edit that makes servers those of a service whose source names them, but for those that do not fit, which unfit has then.
// It keeps ids, and what operators have set since the source said the same of a server. Its errors are ErrOtherSource and ErrNoneLeft. Cost: linear in the fleet.
func SetServers(name string, source model.ServerSource, servers []model.Server, unfit *[]Unfit) fleet.Edit {
	return func(n *fleet.Desired) error {
		*unfit = nil
		next := n.Base.Clone()
		at := slices.IndexFunc(next.Services, func(s model.Service) bool { return s.Name == name && s.Source == source })
		if at < 0 {
			return ErrOtherSource
		}
		s := &next.Services[at]
		earlier := fleet.Earlier(&n.Running, &next)
		number := func(servers []model.Server) {
			s.Servers = slices.Clone(servers)
			giveIDs(s, earlier[name], n.Removed)
			next.ApplyDefaults()
		}
		number(servers)
		fit := slices.Clone(servers)
		for _, bad := range unfitOf(next.Validate(), at) { // the last first: places stay
			*unfit = append(*unfit, Unfit{fit[bad.place], bad.why})
			fit = slices.Delete(fit, bad.place, bad.place+1)
		}
		number(fit)
		if !slices.ContainsFunc(s.Servers, func(server model.Server) bool { return server.TakesNew() }) {
			return ErrNoneLeft
		}
		inOrderOf(&next, earlier)
		n.Apply(next)
		return nil
	}
}

type unfitServer struct {
	place int
	why   error
}

var serverPath = regexp.MustCompile(`^services\[(\d+)\]\.servers\[(\d+)\]\.`)

// unfitOf returns which servers of a service are refused, the last first.
func unfitOf(err error, service int) (list []unfitServer) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	known := map[int]bool{}
	for _, one := range joined.Unwrap() {
		var invalid *model.Invalid
		if !errors.As(one, &invalid) {
			continue
		}
		found := serverPath.FindStringSubmatch(invalid.Path)
		if found == nil || found[1] != strconv.Itoa(service) {
			continue
		}
		if place, _ := strconv.Atoi(found[2]); !known[place] {
			known[place] = true
			list = append(list, unfitServer{place, errors.New(invalid.Problem)})
		}
	}
	slices.SortFunc(list, func(a, b unfitServer) int { return b.place - a.place })
	return list
}
