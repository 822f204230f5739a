package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// Apply is declarative: the fleet becomes what the request says, whatever was changed before. Kept are keys and ids that are not given,
// the weights, states and deadlines that were set since a request that said the same of them, and services of owners.
func (f *fleetAPI) Apply(ctx context.Context, r *ballastv1.ApplyRequest) (*ballastv1.ChangeResponse, error) {
	wanted, err := FleetFromProto(r, r.Keys)
	if err == nil {
		err = f.mayHaveSources(&wanted)
	}
	if err != nil {
		return nil, refusal(err)
	}
	var risks, kept, removals []string
	var joining model.Fleet
	remedy := "change keys with `ballast ctl key rotate`, apply a file without keys:, or say --force-keys"
	answer, err := f.carefully(ctx, r.DryRun, r.Force, func(n *fleet.Desired) error {
		running, next := &n.Running, wanted.Clone()
		next.TunnelsFrom = running.TunnelsFrom // is told by files alone
		made := false
		if r.Keys == nil {
			next.Keys = running.Keys
			if made = f.ensureKeys(&next); made {
				risks, remedy = f.desired.KeyNodes().Orphans(), "say --force-keys to lose them"
			}
		}
		next.Services = append(next.Services, keptByOwners(running.Services, next.Services)...)
		giveNodeIDs(&next, running)
		earlier := complete(&next, n, r.Exact)
		if err := next.Validate(); err != nil {
			return err // with paths in the order of the request
		}
		if !made {
			if len(running.Keys.Cookie) == 0 {
				remedy = "apply the `keys:` in a load balancer's state file (docs/run/operate.md, \"Backup and restore\"), or say --force-keys to lose them"
			}
			nodes := f.desired.KeyNodes()
			if risks = nodes.Risks(running, &next.Keys); len(running.Keys.Cookie) == 0 {
				risks = append(risks, nodes.Unnamed(&next)...)
			}
		}
		if !r.DryRun && !r.ForceKeys {
			if err := unsafe(risks, remedy); err != nil {
				return err
			}
		}
		inOrderOf(&next, earlier)
		joining = next.Clone()
		if r.Exact {
			n.Base = running.Clone()
		}
		var changes []string
		before := n.Running.Clone()
		changes, kept = n.Apply(next)
		if len(r.Confirmed) > 0 || r.Unchanged {
			if err := unlessConfirmed(changes, r.Confirmed); err != nil {
				return err
			}
		}
		if !r.DryRun && (r.AllowRemove || r.Force) {
			return nil
		}
		if removals = fleet.Removals(&before, &n.Running, Counting(ctx, f.desired)); len(removals) > 0 && !r.DryRun {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("nothing was changed: is the file whole? %s: if that is meant, repeat it with allow_remove (ballast ctl: --allow-remove)",
				strings.Join(removals, "; ")))
		}
		return nil
	})
	if err != nil {
		return nil, refusal(err)
	}
	answer.Kept = kept
	answer.Notes = f.unjoined(ctx, &joining)
	if r.DryRun {
		answer.KeyRisks, answer.Removals = risks, removals
	}
	return answer, nil
}

// complete gives a fleet that is to be applied to n the servers that sources have named, the ids of servers and the defaults, and returns whose connections its
// services take over. Of a fleet that was before, servers get other ids than they had where these are others' now.
func complete(next *model.Fleet, n *fleet.Desired, was bool) (earlier map[string][]*model.Service) {
	next.MakeRoomForNodes()
	known := next.Clone() // ids included, which are not those that will be
	known.ApplyDefaults()
	earlier = fleet.Earlier(&n.Running, &known)
	for i := range next.Services {
		s := &next.Services[i]
		keepSourced(s, earlier[s.Name], n)
		if was {
			dropTakenIDs(s, earlier[s.Name], n.Removed)
		}
		giveIDs(s, earlier[s.Name], n.Removed)
	}
	next.ApplyDefaults()
	return earlier
}

// unlessConfirmed refuses changes that are not those that somebody has looked at.
func unlessConfirmed(changes, confirmed []string) error {
	if slices.Equal(changes, confirmed) {
		return nil
	}
	does := "nothing"
	if len(changes) > 0 {
		does = strings.Join(changes, "; ")
	}
	return connect.NewError(connect.CodeAborted, fmt.Errorf("the fleet has changed in the meantime: this would now do %s: look again", does))
}

// ensureKeys makes the keys of a fleet that has none, where keys are made at all, and reports whether it did.
func (f *fleetAPI) ensureKeys(fleet *model.Fleet) bool {
	if !f.desired.MakesKeys() || fleet.Keys.Placement != [16]byte{} {
		return false
	}
	fleet.Keys = model.Keys{Placement: randomKey(), Current: 1, Cookie: map[uint32][16]byte{1: randomKey()}}
	return true
}

func randomKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}

// inOrderOf puts servers that are there already, in a service of this name or of another one, before those that are new, in the order that
// they have: an order of servers makes a table, and tables must not change because a file was sorted.
func inOrderOf(next *model.Fleet, earlier map[string][]*model.Service) {
	for i := range next.Services {
		if len(earlier[next.Services[i].Name]) == 0 {
			continue
		}
		before := earlier[next.Services[i].Name][0]
		place := make(map[uint16]int, len(before.Servers))
		for j := range before.Servers {
			place[before.Servers[j].ID] = j - len(before.Servers)
		}
		slices.SortStableFunc(next.Services[i].Servers, func(a, b model.Server) int { return cmp.Compare(place[a.ID], place[b.ID]) })
	}
}

// dropTakenIDs takes from servers the ids by which connections of others may live.
func dropTakenIDs(s *model.Service, earlier []*model.Service, removed []fleet.Removed) {
	owners := map[uint16]netip.AddrPort{}
	for i := range removed {
		if r := &removed[i]; r.Service == s.Name || slices.ContainsFunc(earlier, func(p *model.Service) bool { return p.Name == r.Service }) {
			owners[r.Server.ID] = where(&r.Server)
		}
	}
	for _, before := range earlier {
		for i := range before.Servers {
			owners[before.Servers[i].ID] = where(&before.Servers[i])
		}
	}
	for i := range s.Servers {
		if owner, taken := owners[s.Servers[i].ID]; taken && owner != where(&s.Servers[i]) {
			s.Servers[i].ID = 0
		}
	}
}

// giveIDs gives the servers of a service their ids where they are not given: that of the server before at the same address, which
// may have left (its connections find it again), in this service or an earlier one, else the next one that no server has, or had lately. Where no connection is
// remembered by the id, a server of the same name keeps it, and new ones get theirs from ApplyDefaults. Cost: linear. When all ids are
// taken it gives none, which Validate refuses.
func giveIDs(s *model.Service, earlier []*model.Service, removed []fleet.Removed) {
	known := map[netip.AddrPort]uint16{} // where -> id
	named := map[string]uint16{}
	taken := map[uint16]bool{} // by servers that are, or were
	names := map[string]bool{s.Name: true}
	for _, before := range earlier {
		names[before.Name] = true
	}
	for _, r := range removed {
		if names[r.Service] {
			taken[r.Server.ID] = true
			known[where(&r.Server)] = r.Server.ID
		}
	}
	for _, before := range slices.Backward(earlier) { // the first has the last word
		for i := range before.Servers {
			old := &before.Servers[i]
			taken[old.ID] = true
			known[where(old)], named[old.Name] = old.ID, old.ID
		}
	}
	given := map[uint16]bool{} // by this list
	for i := range s.Servers {
		given[s.Servers[i].ID], taken[s.Servers[i].ID] = true, true
	}
	choices := *s
	choices.Servers = nil
	choices.ApplyDefaults()
	keeps := choices.Affinity.KeepsIDs()
	var without []*model.Server
	for i := range s.Servers {
		server := &s.Servers[i]
		if server.ID != 0 {
			continue
		}
		id, ok := known[where(server)]
		if !ok && !keeps {
			id, ok = named[server.Name]
		}
		if ok && !given[id] && id <= choices.MaxID() {
			server.ID, given[id] = id, true
			continue
		}
		without = append(without, server)
	}
	if keeps {
		nextIDs(without, taken, choices.MaxID())
	}
}

// nextIDs gives ids above all that are taken, and when those are used up the smallest that are not.
func nextIDs(servers []*model.Server, taken map[uint16]bool, most uint16) {
	highest := uint16(0)
	for id := range taken {
		if id <= most {
			highest = max(highest, id)
		}
	}
	free := make([]uint16, 0, len(servers))
	for id := highest; id < most && len(free) < len(servers); {
		id++
		free = append(free, id)
	}
	for id := uint16(1); id < highest && len(free) < len(servers); id++ {
		if !taken[id] {
			free = append(free, id)
		}
	}
	for i, id := range free {
		servers[i].ID = id
	}
}

func where(s *model.Server) netip.AddrPort { return netip.AddrPortFrom(s.Address, s.Port) }
