// What becomes of connections, those that live and new ones, when servers at other addresses take the place of servers.

package fleet

import (
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
)

// mostGone is the share of a service's servers, one of so many, that one change may take away, or put elsewhere, without a question.
const mostGone = 3

// moveDanger tells of a change that has servers at other addresses take the place of more than a third of those that take new connections, or gives the name of a
// server with living connections to another address; empty: neither.
//
// Another address is another machine, whatever its name: connections stay with the machine that has them where the affinity remembers servers by id, and
// nobody has seen the other one answer.
func moveDanger(from, to *model.Service, living livingOf) string {
	before, after, named := places(from), places(to), map[string]*model.Server{}
	arriving := 0
	for i := range to.Servers {
		server := &to.Servers[i]
		named[server.Name] = server
		if _, was := before[place(server)]; !was && server.TakesNew() {
			arriving++
		}
	}
	var gone []string
	none := Connections{Known: true, Exact: true}
	had, moved, leaving := none, none, 0
	for i := range from.Servers {
		server := &from.Servers[i]
		if now := after[place(server)]; now != nil || server.State == model.StateOff {
			continue
		}
		one, text := living(from.Name, server.ID), server.Name
		if at := place(server).String(); at != text {
			text += " " + at
		}
		if now := named[server.Name]; now != nil {
			text += " -> " + place(now).String()
			moved = moved.And(one)
		}
		had, gone = had.And(one), append(gone, text)
		if server.TakesNew() {
			leaving++
		}
	}
	if min(leaving, arriving)*mostGone <= len(serversTaking(from)) && moved.Known && moved.Live == 0 {
		return ""
	}
	fate := "stay with the old servers until they end, and break if those are gone"
	if !from.Affinity.KeepsIDs() || !to.Affinity.KeepsIDs() {
		fate = fmt.Sprintf("break, as affinity %s does not know servers that have left", to.Affinity)
	}
	becomes := fmt.Sprintf("; %s %s", had, fate)
	if had == none {
		becomes = ""
	}
	return fmt.Sprintf("service %s: other addresses take the place of %d of its %s (%s): nobody has seen them answer%s: "+
		"to be sure, add them beside the old ones, drain those once these are healthy, and remove those last",
		heirName(from, to), len(gone), model.Counted(len(from.Servers), "server", "servers"), model.Some(gone), becomes)
}

// spot is where a server is reached; port 0: at the port that clients ask for.
type spot netip.AddrPort

func place(s *model.Server) spot { return spot(netip.AddrPortFrom(s.Address, s.Port)) }

func (s spot) String() string {
	if at := netip.AddrPort(s); at.Port() != 0 {
		return at.String()
	}
	return netip.AddrPort(s).Addr().String()
}

func places(s *model.Service) map[spot]*model.Server {
	at := make(map[spot]*model.Server, len(s.Servers))
	for i := range s.Servers {
		at[place(&s.Servers[i])] = &s.Servers[i]
	}
	return at
}
