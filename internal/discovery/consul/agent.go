package consul

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/discovery/below"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// agent is what the controller's host says of an agent: where it is, and what is shown to it. Fleets name it, and can change nothing of it.
type agent struct {
	address                              string // URL
	tokenFile, caFile, certFile, keyFile string // empty: none
}

// readAgent reads NAME.yaml of the folder of agents; paths in it are relative to that folder.
func readAgent(dir, name string) (a agent, err error) {
	file := name + ".yaml"
	text, err := below.Read(dir, file)
	if err != nil {
		return a, fmt.Errorf("the controller's host must allow the agent of Consul %s: %w", name, err)
	}
	r := yamltree.New(yamltree.Rules{Bytes: 64 << 10, TooLarge: "name the agent alone", Empty: "write address: https://..."})
	path := func(to *string) yamltree.Value {
		return r.Value(func(text string) error {
			if *to = text; !filepath.IsAbs(text) {
				*to = filepath.Join(dir, text)
			}
			return nil
		})
	}
	r.Read(text, func(root *yaml.Node) {
		r.Mapping(root, "", map[string]yamltree.Value{
			"address":    r.Value(func(text string) error { a.address = text; return nil }),
			"token_file": path(&a.tokenFile), "ca_file": path(&a.caFile), "cert_file": path(&a.certFile), "key_file": path(&a.keyFile),
		})
	})
	at, err := url.Parse(a.address)
	switch {
	case r.Failed() > 0:
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || *at != (url.URL{Scheme: at.Scheme, Host: at.Host}):
		r.FailAt("address", "write it like https://consul.example.com:8501", "it is not the URL of an agent")
	case at.Scheme == "http" && a.caFile+a.certFile+a.keyFile != "":
		r.FailAt("address", "use https, or remove ca_file, cert_file and key_file", "http has no certificates")
	case (a.certFile == "") != (a.keyFile == ""):
		r.FailAt("cert_file", "name cert_file and key_file", "a certificate and its key belong together")
	}
	var wrong []string
	for _, o := range r.Objections() {
		wrong = append(wrong, fmt.Sprintf("%s:%d: %s: %s: %s", filepath.Join(dir, file), o.Line, o.Path, o.Problem, o.Remedy))
	}
	if len(wrong) > 0 {
		return agent{}, fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return a, nil
}
