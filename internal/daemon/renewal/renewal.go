// Package renewal has a node replace the certificate that it has joined by with a new one when two thirds of its life are over.
package renewal

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	period   = time.Minute      // between looks, and between attempts
	askTime  = 30 * time.Second // of one attempt
	mostLate = 10               // attempts in the last third of a life, at least: shorter lives are looked at more often
)

// Renewal renews the certificate of a node. It is safe for concurrent use.
type Renewal struct {
	credentials *pki.Credentials
	client      ballastv1connect.RenewalClient
	log         *slog.Logger

	mutex   sync.Mutex
	problem string
}

// New returns a renewal by some controllers (host:port).
func New(credentials *pki.Credentials, controllers []string, log *slog.Logger) *Renewal {
	return &Renewal{credentials: credentials, client: api.NewRenewalClient(controllers, credentials.Client()), log: log}
}

// Run renews whenever it is due, until ctx ends.
func (r *Renewal) Run(ctx context.Context) {
	for {
		r.look(ctx, time.Now())
		wait := period
		if r.credentials.Enrolled() {
			wait = min(wait, pki.LifeOf(r.credentials.Own())/3/mostLate)
		}
		select {
		case <-time.After(max(wait, time.Second)):
		case <-ctx.Done():
			return
		}
	}
}

// look renews if it is due.
func (r *Renewal) look(ctx context.Context, now time.Time) {
	own := r.credentials.Own()
	if !r.credentials.Enrolled() || now.Before(pki.RenewAt(own)) {
		r.say("")
		return
	}
	asked, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := r.renew(asked, now)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.say(fmt.Sprintf("the certificate is due since %s and not renewed: %v; it ends on %s", pki.RenewAt(own).Format(time.RFC3339), err, own.NotAfter.Format(time.RFC3339)))
	default:
		r.say("")
		r.log.Info("certificate renewed", "ends", r.credentials.Own().NotAfter)
	}
}

func (r *Renewal) renew(ctx context.Context, now time.Time) error {
	who := r.credentials.Identity()
	dir, name := r.credentials.Place()
	key, err := pki.NextKey(dir, name)
	if err != nil {
		return err
	}
	request, err := pki.NewRequest(key, who.Role, who.Name)
	if err != nil {
		return err
	}
	answer, err := r.client.Renew(ctx, &ballastv1.RenewRequest{Request: request})
	if err != nil {
		return err
	}
	if err := pki.Issued(answer.Chain, r.credentials.Root(), &pki.Wanted{Role: who.Role, Name: who.Name, Key: &key.PublicKey}, now); err != nil {
		return err
	}
	return pki.Install(dir, name, answer.Chain)
}

// say keeps a problem, and logs it once.
func (r *Renewal) say(problem string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if problem != "" && problem != r.problem {
		r.log.Warn(problem)
	}
	r.problem = problem
}

// Problems are what operators should know.
func (r *Renewal) Problems() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.problem == "" {
		return nil
	}
	return []string{r.problem}
}
