// Names of a file that nobody has joined by: often they are misspelt.
package api

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// unjoinedNames is how many servers a note names.
const unjoinedNames = 5

// unjoined returns a note for each load balancer of a fleet that controllers have not seen within a day, and one for each service with servers that need
// agents and whose agents they have not seen, by name or address. nil: all have joined, or whoever answers knows of itself alone.
func (f *fleetAPI) unjoined(ctx context.Context, fleet *model.Fleet) (notes []string) {
	nodes, err := f.desired.Nodes(ctx)
	if err != nil || !slices.ContainsFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Role == string(pki.Controller) }) {
		return nil
	}
	joined := map[string]bool{}
	for _, n := range nodes {
		if n.Ready == "" && n.Version == "" { // it is listed for its tier alone
			continue
		}
		joined[n.Role+" "+n.Name] = true
		if host, _, err := net.SplitHostPort(n.Address); err == nil {
			joined[n.Role+" "+host] = true
		}
	}
	for i := range fleet.Nodes {
		if name := fleet.Nodes[i].Name; !joined[string(pki.LB)+" "+name] {
			notes = append(notes, fmt.Sprintf("node %s: no load balancer of that name has joined: start it, or correct the name", name))
		}
	}
	servers, _ := f.desired.Servers(ctx, "")
	for _, s := range servers {
		if s.Agent == "connected" { // its certificate has the server's address
			joined[s.Service+"/"+s.Server.GetAddress()] = true
		}
	}
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if s.Return != model.ReturnDirect || !s.Affinity.Cookies() {
			continue
		}
		var without []string
		for j := range s.Servers {
			server, agent := &s.Servers[j], string(pki.Agent)+" "
			at := server.Address.String()
			if server.State != model.StateOff && !joined[agent+server.Name] && !joined[agent+at] && !joined[s.Name+"/"+at] {
				without = append(without, cmp.Or(server.Name, at))
			}
		}
		if more := len(without) - unjoinedNames; more > 0 {
			without = append(without[:unjoinedNames:unjoinedNames], fmt.Sprintf("%d more", more))
		}
		if len(without) > 0 {
			notes = append(notes, fmt.Sprintf("service %s: no agent has joined of server %s: connections there carry no cookie until one has", s.Name, strings.Join(without, ", ")))
		}
	}
	return notes
}
