// The first controller of a fleet.
package setup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Controller is how a machine becomes the first controller of a fleet.
type Controller struct {
	Host
	Authority string // directory of the authority
	DataDir   string
	Name      string // empty: the host's
	Addresses []netip.Addr
	Options   string // of the daemon, besides
}

const controllerUnit = "ballast-controller"

// anywhere are addresses for documents (RFC 5737, RFC 3849): routes lead there as to most others.
var anywhere = []string{"192.0.2.1:9", "[2001:db8::1]:9"}

// ownAddress is the one that the machine uses by default.
func ownAddress() (own netip.Addr, err error) {
	for _, there := range anywhere {
		if own, err = towards(there); err == nil {
			return own, nil
		}
	}
	return own, fmt.Errorf("find the address of this machine: %w: say --address", err)
}

// Run makes the authority and the controller's certificate, writes its options, starts it, and gives it the signing authority.
func (c *Controller) Run(ctx context.Context) (err error) {
	if c.Name == "" {
		if c.Name, err = hostname(); err != nil {
			return err
		}
	}
	if err := pki.CheckName(c.Name); err != nil {
		return err
	}
	if len(c.Addresses) == 0 {
		own, err := ownAddress()
		if err != nil {
			return err
		}
		c.Addresses = []netip.Addr{own}
	}
	certificate, key := filepath.Join(c.TLSDir, c.Name+".crt"), filepath.Join(c.TLSDir, c.Name+".key")
	data, err := os.ReadDir(c.DataDir)
	switch {
	case err == nil && len(data) > 0:
		return fmt.Errorf("%s has the state of a controller: nothing was changed", c.DataDir)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	err = absent(filepath.Join(c.Authority, "ca.crt"), filepath.Join(c.Authority, "ca.key"), filepath.Join(c.TLSDir, "ca.crt"), certificate, key, c.defaults(controllerUnit))
	if err != nil {
		return err
	}
	if err := c.certify(); err != nil {
		return err
	}
	options := "--data-dir " + c.DataDir + " --name " + c.Name
	if c.Options != "" {
		options += " " + c.Options
	}
	if err := create(c.defaults(controllerUnit), "OPTIONS=\""+options+"\"\n", 0o644); err != nil {
		return err
	}
	c.say("made the authority in %s and controller %s (%v)", c.Authority, c.Name, c.Addresses)
	delegate := api.Ctl(c.Name) + " pki delegate " + c.Authority
	if c.Systemd == nil {
		c.say("nothing was started: the commands are\n  ballast controller --tls-dir %s %s\n  %s", c.TLSDir, options, delegate)
		c.next()
		return nil
	}
	if err := c.Systemd(ctx, controllerUnit); err != nil {
		return fmt.Errorf("%w, then `%s`", err, delegate)
	}
	if err := c.delegate(ctx); err != nil {
		return fmt.Errorf("%w: once the controller is ready, `%s`", err, delegate)
	}
	c.say("controller %s is ready", c.Name)
	c.next()
	return nil
}

// certify makes the authority, and the controller's certificate with it. Its key is in one place only.
func (c *Controller) certify() error {
	for _, dir := range []string{c.TLSDir, c.Authority} {
		if err := pki.Directory(dir); err != nil {
			return err
		}
	}
	if err := pki.Init(c.Authority, pki.DefaultAuthorityLife, false); err != nil {
		return err
	}
	if err := pki.Issue(c.Authority, pki.Request{Role: pki.Controller, Name: c.Name, Addresses: c.Addresses}); err != nil {
		return err
	}
	for file, mode := range map[string]os.FileMode{"ca.crt": 0o644, c.Name + ".crt": 0o644, c.Name + ".key": 0o600} {
		content, err := os.ReadFile(filepath.Join(c.Authority, file))
		if err != nil {
			return err
		}
		if err := create(filepath.Join(c.TLSDir, file), string(content), mode); err != nil {
			return err
		}
	}
	return os.Remove(filepath.Join(c.Authority, c.Name+".key"))
}

// delegate gives the controller that has started the signing authority.
func (c *Controller) delegate(ctx context.Context) error {
	now, err := c.await(ctx, c.Name, c.Wait, func(s *standing) bool { return s.Ready })
	if err != nil {
		return err
	}
	if !now.Ready {
		return fmt.Errorf("the controller is not ready: %v", now.NotReady)
	}
	signing, err := pki.Delegate(c.Authority, 0)
	if err != nil {
		return err
	}
	request := &ballastv1.SetSigningAuthorityRequest{}
	if request.Certificate, request.Key, err = signing.Encode(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = api.NewClient(api.SocketPath(c.RunDir, c.Name)).Enrolment().SetSigningAuthority(ctx, request)
	return err
}

// next says what comes next.
func (c *Controller) next() {
	ctl := api.Ctl(c.Name)
	c.say("%s is needed for controllers and operators alone: keep a copy, and the directory, away from this machine", filepath.Join(c.Authority, "ca.key"))
	c.say("next, for each machine a line to run there:\n  %s node invite lb\n  %s node invite agent\nand the fleet:\n  %s apply -f FILE", ctl, ctl, ctl)
}
