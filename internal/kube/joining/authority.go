// Package joining makes a fleet of the pods of a cluster: certificates for its controllers and for ballast-kube, and invitations by which its nodes
// join. The fleet's authority is a Secret, which the account of the controllers alone may read.
package joining

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ballast-lb/ballast/internal/pki"
)

// Secrets of a release, after its name.
const (
	authoritySecret = "-authority" // ca.crt, ca.key
	sourceSecret    = "-source"    // what ballast-kube shows to controllers
	joinSecret      = "-join"      // tokens of nodes
)

// begunAnnotation is on the authority's Secret once controllers have begun the fleet.
const begunAnnotation = "ballast.io/begun"

// Files of a Secret, and of a directory of certificates.
const (
	rootFile    = "ca.crt"
	rootKeyFile = "ca.key"
)

// Controller is a controller that runs as a pod.
type Controller struct {
	Kubernetes kubernetes.Interface
	Namespace  string
	Release    string   // what names of Secrets begin with
	Name       string   // of the controller: that of its pod
	DNS        []string // names that others reach it by
	TLSDir     string   // where its certificate goes; the volume should be memory
	First      string   // the controller that begins the fleet, and DataDir is where its state is
	DataDir    string
}

// Certify writes ca.crt and a new certificate of the controller, and makes the authority if there is none. Where the fleet has begun and the first
// controller has no state any more it is an error: it would begin another fleet, with other keys and without services.
func (c *Controller) Certify(ctx context.Context) error {
	secret, err := c.authority(ctx)
	if err != nil {
		return err
	}
	if c.Name == c.First && secret.Annotations[begunAnnotation] != "" {
		entries, err := os.ReadDir(c.DataDir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if !holdsState(entries) {
			return fmt.Errorf("%s is empty, and the fleet has begun at %s: restore a backup into it (`ballast controller restore`); to begin a new fleet, delete the Secret %s",
				c.DataDir, secret.Annotations[begunAnnotation], secret.Name)
		}
	}
	return c.issue(secret)
}

// holdsState reports whether a directory has more than what file systems make by themselves.
func holdsState(entries []os.DirEntry) bool {
	for _, entry := range entries {
		if entry.Name() != "lost+found" {
			return true
		}
	}
	return false
}

// issue replaces the controller's certificate.
func (c *Controller) issue(secret *corev1.Secret) error {
	return c.withAuthority(secret, func(dir string) error {
		if err := pki.Issue(dir, pki.Request{Role: pki.Controller, Name: c.Name, DNS: c.DNS}); err != nil {
			return err
		}
		for _, file := range []string{rootFile, c.Name + ".key", c.Name + ".crt"} {
			if err := os.Rename(filepath.Join(dir, file), filepath.Join(c.TLSDir, file)); err != nil {
				return err
			}
		}
		return nil
	})
}

// renew replaces the certificate of the controller if two thirds of its life are over.
func (c *Controller) renew(ctx context.Context, at time.Time) error {
	own, err := pki.Load(c.TLSDir, c.Name, pki.Controller)
	if err != nil || at.Before(pki.RenewAt(own.Own())) {
		return err
	}
	secret, err := c.authority(ctx)
	if err != nil {
		return err
	}
	return c.issue(secret)
}

// authority is the Secret of the fleet's authority. The first that needs it makes it.
func (c *Controller) authority(ctx context.Context) (*corev1.Secret, error) {
	name := c.Release + authoritySecret
	for {
		secret, err := c.secrets().Get(ctx, name, metav1.GetOptions{})
		if err == nil || !apierrors.IsNotFound(err) {
			return secret, err
		}
		dir, err := os.MkdirTemp(c.TLSDir, ".authority-")
		if err != nil {
			return nil, err
		}
		content, err := newAuthority(dir)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return nil, err
		}
		secret, err = c.secrets().Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: content}, metav1.CreateOptions{})
		if err == nil || !apierrors.IsAlreadyExists(err) { // else another controller was quicker
			return secret, err
		}
	}
}

func (c *Controller) secrets() secretInterface { return c.Kubernetes.CoreV1().Secrets(c.Namespace) }

func newAuthority(dir string) (map[string][]byte, error) {
	if err := pki.Init(dir, pki.DefaultAuthorityLife, false); err != nil {
		return nil, err
	}
	return read(dir, rootFile, rootKeyFile)
}

func read(dir string, files ...string) (map[string][]byte, error) {
	content := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		content[file] = text
	}
	return content, nil
}

// withAuthority has the authority in a directory for a moment.
func (c *Controller) withAuthority(secret *corev1.Secret, do func(dir string) error) (err error) {
	if len(secret.Data[rootFile]) == 0 || len(secret.Data[rootKeyFile]) == 0 {
		return fmt.Errorf("secret %s has no %s or no %s: both are needed to issue certificates", secret.Name, rootFile, rootKeyFile)
	}
	dir, err := os.MkdirTemp(c.TLSDir, ".authority-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, file := range []string{rootFile, rootKeyFile} {
		if err := os.WriteFile(filepath.Join(dir, file), secret.Data[file], 0o600); err != nil {
			return err
		}
	}
	return do(dir)
}
