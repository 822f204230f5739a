// Why this host does not serve as it should, and which packets that loses.
package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// describe adds what the host serves to a status.
func (r *reconciler) describe(status *api.AgentStatus) {
	stops, problems := r.obstacles()
	status.Ready, status.NotReady, status.Problems = len(stops) == 0, stops, slices.Concat(stops, problems)
	status.Config, status.Generation, status.Revision = r.file, r.serving.Generation, r.desired.Revision
	status.Services, status.Interfaces = slices.Clone(r.serving.Wanted.Marking), r.programs.Modes()
	status.Left = r.desired.Left(r.serving.Here())
	r.features.describe(&r.serving, status)
}

// obstacles are what keeps connections from carrying cookies, or the host from taking the services' packets, empty: it is ready. problems
// are what else is not as wanted.
func (r *reconciler) obstacles() (found, problems []string) {
	switch {
	case !r.known && r.configPath != "":
		found = append(found, "the file is refused: what an earlier process left is left unchanged")
	case !r.known && r.file.Error != "":
		found = append(found, "the state is refused: what an earlier process left is left unchanged")
	case !r.known && r.unnamed:
		found = append(found, r.whyUnnamed()+"; what an earlier process left is left unchanged")
	case !r.known:
		found = append(found, "no controller has sent yet what this host serves, and no state was kept: what an earlier process left, if anything, is left unchanged")
	case !r.serving.Any():
		found = append(found, r.whyUnnamed())
	}
	detached, down, _ := r.programs.Obstacles()
	losing, avoided := r.programs.Exits.Split(r.serving.LeavesBy)
	lost, unknown := r.features.probes.Obstacles(time.Now())
	found, problems = slices.Concat(found, detached, losing, lost, r.serving.Problems), slices.Concat(down, avoided, unknown)
	if r.serving.Left && r.serving.Any() {
		problems = append(problems, "only connections of before go on: "+r.whyUnnamed())
	}
	problems = slices.Concat(problems, r.serving.LostPredecessors(), r.features.problems())
	if unsaved := r.desired.Saved.Unsaved(); unsaved != "" {
		problems = append(problems, unsaved)
	}
	return found, problems
}

// whyUnnamed is why this host serves nothing. Controllers send an agent only the servers that its certificate speaks for.
func (r *reconciler) whyUnnamed() string {
	if r.configPath != "" || len(r.desired.Node.Running.Services) > 0 {
		return "no service names this host: check --server and the servers' addresses"
	}
	who := r.credentials.Identity()
	addresses := "without an address"
	if len(who.Addresses) > 0 {
		addresses = "of " + strings.Trim(fmt.Sprint(who.Addresses), "[]")
	}
	return fmt.Sprintf("the controllers know no server by the certificate of this host (%s, %s): add the server, or make a certificate with its name or address "+
		"(`ballast ctl pki issue DIR agent NAME --address ADDRESS`)", who.Name, addresses)
}

// losses are the services whose packets come to this host and to no application, and why: load balancers give its server no new connections
// then. What else keeps the agent from being ready
// loses no packet for certain, and is for checks to judge.
func (r *reconciler) losses() (losses []*ballastv1.Loss) {
	if !r.known {
		return nil // what an earlier process left goes on
	}
	detached, _, none := r.programs.Obstacles()
	for _, s := range r.serving.Wanted.Direct {
		why := ""
		for _, vip := range s.Service.VIPs() {
			why = cmp.Or(why, r.features.probes.Lost(s.Service, vip, time.Now()))
		}
		if none && s.Service.Forward.Tunnels() {
			why = cmp.Or(why, strings.Join(detached, "; "), "no device takes packets out of their tunnel")
		}
		unseen := why == "" && (s.Service.Session == model.SessionTLS || s.Service.SYNProxy == model.SYNProxyAlways) && r.features.tracked.Resets != ""
		if unseen { // what checks begin is a connection with a SYN
			why = r.features.tracked.Resets
		}
		if why != "" {
			losses = append(losses, &ballastv1.Loss{Service: s.Service.Name, Reason: why, Unseen: unseen})
		}
	}
	return losses
}
