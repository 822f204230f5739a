// What this host finds that means that a service's packets are lost here: load balancers give its server no new connections then.
package agent

import (
	"cmp"
	"strings"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// losses are the services whose packets come to this host and to no application, and why. What else keeps the agent from being ready
// loses no packet for certain, and is for checks to judge.
func (r *reconciler) losses() (losses []*ballastv1.Loss) {
	if !r.known {
		return nil // what an earlier process left goes on
	}
	detached, _, none := r.programs.obstacles()
	for _, s := range r.serving.wanted.Direct {
		why := r.serving.missing[s.Service.VIP]
		if none && s.Service.Forward.Tunnels() {
			why = cmp.Or(why, strings.Join(detached, "; "), "no device takes packets out of their tunnel")
		}
		unseen := why == "" && s.Service.Session == model.SessionTLS && r.tracked.resets != ""
		if unseen { // what checks begin is a connection with a SYN
			why = r.tracked.resets
		}
		if why != "" {
			losses = append(losses, &ballastv1.Loss{Service: s.Service.Name, Reason: why, Unseen: unseen})
		}
	}
	return losses
}
