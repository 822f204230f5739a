// A machine that joins a fleet.
package setup

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	retryFor   = 30 * time.Second // controllers that do not answer, or cannot sign now
	retryPause = time.Second
	stateTime  = 5 * time.Second // that a node which is connected gets to be ready
)

// Join is how a machine joins.
type Join struct {
	Host
	Controllers []string // host:port
	Token       string
	Name        string // empty: the host's
	Interfaces  []string
	Options     string // of the daemon, besides
	Instance    string
	Again       bool // replace the certificate that the machine has; its options stay as they are
	Only        bool // get the certificate, and start nothing
	Keep        bool // with Only: a certificate that is there and valid is enough, where the token gets no other
	Version     string
}

// Run gets a certificate, writes what the daemon needs, and starts it.
func (j *Join) Run(ctx context.Context) (err error) {
	if j.Name == "" {
		if j.Name, err = hostname(); err != nil {
			return err
		}
	}
	if !j.Keep {
		return j.run(ctx)
	}
	own, invalid := pki.Load(j.TLSDir, j.Name, "")
	if invalid == nil && !time.Now().Before(own.Own().NotAfter) {
		invalid = fmt.Errorf("the certificate ended at %s", own.Own().NotAfter.Format(time.RFC3339))
	}
	j.Again, _ = pki.Has(j.TLSDir, j.Name)
	switch err := j.run(ctx); {
	case err == nil, invalid != nil:
		return err
	default:
		j.say("%s: the certificate that is there is kept: %v", j.Name, err)
		return nil
	}
}

func (j *Join) run(ctx context.Context) error {
	token, err := enrol.ParseToken(j.Token)
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	if err := pki.CheckName(j.Name); err != nil {
		return err
	}
	unit := "ballast-" + string(token.Role)
	if err := j.check(token, unit); err != nil {
		return err
	}
	if err := j.prepare(unit); err != nil {
		return err
	}
	key, err := pki.NextKey(j.TLSDir, j.Name)
	if err != nil {
		return err
	}
	joined, err := j.ask(ctx, token, key)
	if err != nil {
		refused := (*enrol.Refused)(nil)
		if there, _ := pki.Has(j.TLSDir, j.Name); !there && (errors.As(err, &refused) || errors.Is(err, enrol.ErrFinal)) { // else a daemon may renew by it, or the answer was lost
			err = errors.Join(err, pki.DropNextKey(j.TLSDir, j.Name))
		}
		return err
	}
	if joined.Ahead != 0 {
		j.say("this machine's clock and that of controller %s differ by %v: set the one that is wrong", joined.Controller, joined.Ahead.Abs())
	}
	if err := pki.InstallRoot(j.TLSDir, joined.Root, j.Again); err != nil {
		return err
	}
	if err := pki.Install(j.TLSDir, j.Name, joined.Chain); err != nil {
		return err
	}
	j.say("%s %s: controller %s has signed the certificate, which is in %s", token.Role, j.Name, joined.Controller, filepath.Join(j.TLSDir, j.Name+".crt"))
	if j.Only {
		return nil
	}
	source := "--controller " + strings.Join(j.merged(joined.Controllers), ",") + " --name " + j.Name
	options := strings.TrimSpace(strings.Join(append(j.interfaces(), j.Options), " "))
	if err := j.writeOptions(unit, source, options); err != nil {
		return err
	}
	if j.Systemd == nil {
		j.say("nothing was started: the command is\n  ballast %s", strings.Join(strings.Fields(string(token.Role)+" --instance "+j.Instance+" "+source+" "+options), " "))
		return nil
	}
	if err := j.Systemd(ctx, unit); err != nil {
		return err
	}
	if err := j.ready(ctx, token.Role, unit); err != nil {
		return err
	}
	for _, line := range joined.Drained {
		j.say("as before it joined, %s takes it back into service", line)
	}
	return nil
}

// writeOptions writes those of the unit. A node that joins again has them already.
func (j *Join) writeOptions(unit, source, options string) error {
	if j.Again && absent(j.defaults(unit)) != nil {
		return nil
	}
	content := fmt.Sprintf("INSTANCE=%s\nSOURCE=\"%s\"\n", j.Instance, source)
	if options != "" {
		content += fmt.Sprintf("OPTIONS=\"%s\"\n", options)
	}
	return create(j.defaults(unit), content, 0o644)
}

// check refuses a machine that is a node already, before anybody is asked.
func (j *Join) check(token *enrol.Token, unit string) error {
	there, enrolled := pki.Has(j.TLSDir, j.Name)
	if err := pki.CheckRoot(j.TLSDir, j.Name, token.Root, j.Again); err != nil {
		return err
	}
	const remedy = "to replace the certificate of a node that joined before, add --again"
	switch {
	case there && !enrolled:
		return fmt.Errorf("%s was issued by hand: nothing was changed: remove it, or join with another --name", filepath.Join(j.TLSDir, j.Name+".crt"))
	case there && !j.Again:
		return fmt.Errorf("%s is there already: nothing was changed: %s", filepath.Join(j.TLSDir, j.Name+".crt"), remedy)
	case there:
		if err := pki.CheckOwner(j.TLSDir, j.Name, token.Role); err != nil {
			return err
		}
	default:
		if err := absent(filepath.Join(j.TLSDir, j.Name+".key")); err != nil {
			return fmt.Errorf("%w: it has no certificate: remove it, or join with another --name", err)
		}
	}
	if j.Again || j.Only {
		return nil
	}
	if err := absent(j.defaults(unit)); err != nil {
		return fmt.Errorf("%w: `ballast leave` takes a node away, --again replaces its certificate; or get the certificate alone with --certificate-only", err)
	}
	return j.checkInterfaces()
}

// checkInterfaces refuses devices that the daemon would not find.
func (j *Join) checkInterfaces() error {
	for _, name := range j.Interfaces {
		if _, err := net.InterfaceByName(name); err != nil {
			return netdev.NotFound(name, err)
		}
	}
	return nil
}

// prepare has everything that is to be written fail before the token is used.
func (j *Join) prepare(unit string) error {
	if err := pki.Directory(j.TLSDir); err != nil {
		return err
	}
	dirs := []string{j.TLSDir}
	if !j.Only && absent(j.defaults(unit)) == nil {
		dirs = append(dirs, j.Defaults)
	}
	for _, dir := range dirs {
		if err := writable(dir); err != nil {
			return err
		}
	}
	return nil
}

// ask asks one controller after another until one signs or says why not.
func (j *Join) ask(ctx context.Context, token *enrol.Token, key *ecdsa.PrivateKey) (*enrol.Joined, error) {
	ctx, cancel := context.WithTimeout(ctx, retryFor)
	defer cancel()
	j.say("asking %s, for up to %v", strings.Join(j.Controllers, ", "), retryFor)
	said := ""
	for {
		var reasons []string
		for _, controller := range j.Controllers {
			joined, err := enrol.Join(ctx, controller, token, j.Name, key, j.Version)
			refused := (*enrol.Refused)(nil)
			switch {
			case err == nil:
				return joined, nil
			case errors.As(err, &refused) && !refused.Again:
				return nil, fmt.Errorf("controller %s refuses: %w", controller, err)
			case errors.Is(err, enrol.ErrFinal):
				return nil, fmt.Errorf("controller %s: %w", controller, err)
			}
			reasons = append(reasons, controller+": "+err.Error())
		}
		text := strings.Join(reasons, "; ")
		if text != said && ctx.Err() == nil {
			said = text
			j.say("no controller signs yet: %s", text)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("no controller signs: %s", said)
		}
	}
}

// merged are the controllers that this one asked first, and those that they name.
func (j *Join) merged(named []string) []string {
	all := slices.Clone(j.Controllers)
	for _, controller := range named {
		if !slices.Contains(all, controller) {
			all = append(all, controller)
		}
	}
	return all
}

func (j *Join) interfaces() (options []string) {
	for _, device := range j.Interfaces {
		options = append(options, "--interface "+device)
	}
	return options
}

// ready waits until the daemon has a stream to a controller, and for a moment until it has its state.
func (j *Join) ready(ctx context.Context, role pki.Role, unit string) error {
	now, err := j.await(ctx, j.Instance, j.Wait, func(s *standing) bool { return len(s.Controllers) > 0 })
	if err == nil && len(now.Controllers) > 0 {
		now, err = j.await(ctx, j.Instance, stateTime, func(s *standing) bool { return s.Ready })
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s does not answer: %w: see `journalctl -u %s`", unit, err, unit)
	case len(now.Controllers) == 0:
		return fmt.Errorf("%s runs and is not connected: %s", unit, strings.Join(now.NotReady, "; "))
	case !now.Ready:
		j.say("%s %s is connected, and not ready yet: %s", role, j.Name, strings.Join(now.NotReady, "; "))
	default:
		j.say("%s %s is connected and ready", role, j.Name)
	}
	return nil
}
