package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// maxBytes is the size of the largest configuration file that is read.
const maxBytes = 1 << 20

// readConfig reads a configuration file: pools, class and prefix. Every objection names its line.
func readConfig(path string) (o kube.Options, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return o, fmt.Errorf("read configuration: %w", err)
	}
	r := yamltree.New(yamltree.Rules{Bytes: maxBytes, TooLarge: "join ranges", Empty: "give pools"})
	word := func(to *string) yamltree.Value {
		return r.Value(func(text string) error {
			if *to = text; text == "" {
				return &model.Invalid{Problem: "empty", Remedy: "give a value, or remove the key"}
			}
			return nil
		})
	}
	r.Read(text, func(root *yaml.Node) {
		o = kube.Options{}
		r.Mapping(root, "", map[string]yamltree.Value{"class": word(&o.Class), "prefix": word(&o.Prefix), "pools": func(node *yaml.Node, path string) {
			r.Sequence(node, path, func(node *yaml.Node, path string) {
				var pool kube.Pool
				r.Mapping(node, path, map[string]yamltree.Value{"name": word(&pool.Name), "by_request": r.Value(func(text string) error {
					if pool.ByRequest = text == "true"; text != "true" && text != "false" {
						return &model.Invalid{Problem: fmt.Sprintf("%q is neither", text), Remedy: "use true or false"}
					}
					return nil
				}), "addresses": func(node *yaml.Node, path string) {
					r.Sequence(node, path, r.Value(func(text string) (err error) {
						one, err := kube.ParseRange(text)
						pool.Ranges = append(pool.Ranges, one)
						return err
					}))
				}})
				o.Pools = append(o.Pools, pool)
			})
		}})
	})
	if r.Failed() == 0 {
		var invalid *model.Invalid
		if errors.As(check(&o), &invalid) {
			r.FailAt(invalid.Path, invalid.Remedy, "%s", invalid.Problem)
		}
	}
	var list []error
	for _, objection := range r.Objections() {
		list = append(list, fmt.Errorf("%s:%d: %w", path, objection.Line, &model.Invalid{Path: objection.Path, Problem: objection.Problem, Remedy: objection.Remedy}))
	}
	return o, errors.Join(list...)
}

// check refuses what makes no sense, with the path of a configuration file. The error is *model.Invalid.
func check(o *kube.Options) error {
	if len(o.Pools) == 0 {
		return &model.Invalid{Path: "pools", Problem: "missing", Remedy: "give at least one pool of addresses"}
	}
	if domain, name, ok := strings.Cut(o.Class, "/"); o.Class != "" && (!ok || domain == "" || name == "" || strings.Contains(name, "/")) {
		return &model.Invalid{Path: "class", Problem: fmt.Sprintf("%q is no load balancer class", o.Class), Remedy: "write it like " + kube.DefaultClass}
	}
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	if strings.Trim(o.Prefix, allowed) != "" || strings.HasPrefix(o.Prefix, "-") || len(o.Prefix) > maxPrefix {
		return &model.Invalid{Path: "prefix", Problem: fmt.Sprintf("%q is no prefix of names", o.Prefix), Remedy: fmt.Sprintf("use up to %d letters, digits and -", maxPrefix)}
	}
	return kube.CheckPools(o.Pools)
}

// maxPrefix leaves room for the names of Services.
const maxPrefix = 20

// parsePools reads the values of --pool: [NAME=]ADDRESSES, separated by commas.
func parsePools(values []string) (pools []kube.Pool, err error) {
	for _, value := range values {
		name, list, named := strings.Cut(value, "=")
		if !named {
			name, list = "default", value
		}
		i := slices.IndexFunc(pools, func(p kube.Pool) bool { return p.Name == name })
		if i < 0 {
			i, pools = len(pools), append(pools, kube.Pool{Name: name})
		}
		for text := range strings.SplitSeq(list, ",") {
			one, err := kube.ParseRange(strings.TrimSpace(text))
			if err != nil {
				return nil, fmt.Errorf("--pool %s: %w", value, err)
			}
			pools[i].Ranges = append(pools[i].Ranges, one)
		}
	}
	return pools, nil
}
