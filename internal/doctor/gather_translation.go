package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	nftTimeout  = 3 * time.Second
	maxRules    = 16 << 20 // bytes of JSON
	maxJumps    = 16       // the kernel allows as many
	maxRulesSum = 1 << 16  // that are visited, by whatever way
)

// translationFacts are the rules of nftables that rewrite destinations of what comes in.
type translationFacts struct {
	Known bool // nft is installed, and answered
	Err   error
	Rules []translationRule
}

// A translationRule is a redirect or a DNAT, with the conditions on the way to it.
type translationRule struct {
	Family     string // ip, ip6, inet
	Text       string // redirect to port 8080
	Known      bool   // where it leads: to To; its port is 0 where that stays, its address is not valid where it is any of this host's
	To         netip.AddrPort
	Conditions []condition
}

type condition struct {
	Op          string
	Left, Right any // as in nft's JSON
}

// gatherTranslation asks nft, if it is installed: rules that only another tool shows are not seen.
func gatherTranslation(ctx context.Context) (t translationFacts) {
	path, err := exec.LookPath("nft")
	if err != nil {
		return t
	}
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	out, err := outputOf(exec.CommandContext(ctx, path, "-j", "list", "ruleset"))
	if err == nil {
		t.Rules, err = parseTranslation(out)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("nft has not answered within %v", nftTimeout)
	}
	t.Known, t.Err = err == nil, err
	return t
}

func outputOf(command *exec.Cmd) ([]byte, error) {
	var complaint bytes.Buffer
	command.Stderr = &complaint
	command.WaitDelay = time.Second
	pipe, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(pipe, maxRules+1))
	if len(out) > maxRules {
		err = errors.Join(fmt.Errorf("more than %d MiB of rules", maxRules>>20), command.Process.Kill())
	}
	if ended := command.Wait(); err == nil && ended != nil {
		first, _, _ := strings.Cut(complaint.String(), "\n")
		err = fmt.Errorf("%w: %s", ended, first)
	}
	return out, err
}

type nftChain struct{ Family, Table, Name, Type, Hook string }

type nftSet struct {
	Family, Table, Name string
	Elem                any
}

// nftRules are what the walk from the hooks needs.
type nftRules struct {
	rules   map[nftChain][][]map[string]any // by the chain's family, table and name
	sets    map[nftChain]any                // elements, by the set's family, table and name
	visited int
	found   []translationRule
}

func parseTranslation(text []byte) ([]translationRule, error) {
	var ruleset struct {
		Nftables []struct {
			Chain *nftChain
			Rule  *struct {
				Family, Table, Chain string
				Expr                 []map[string]any
			}
			Set, Map *nftSet
		}
	}
	if err := json.Unmarshal(text, &ruleset); err != nil {
		return nil, fmt.Errorf("read the rules of nft: %w", err)
	}
	w := nftRules{rules: map[nftChain][][]map[string]any{}, sets: map[nftChain]any{}}
	var hooks []nftChain
	for _, object := range ruleset.Nftables {
		switch {
		case object.Chain != nil && object.Chain.Type == "nat" && object.Chain.Hook == "prerouting":
			hooks = append(hooks, nftChain{Family: object.Chain.Family, Table: object.Chain.Table, Name: object.Chain.Name})
		case object.Rule != nil:
			chain := nftChain{Family: object.Rule.Family, Table: object.Rule.Table, Name: object.Rule.Chain}
			w.rules[chain] = append(w.rules[chain], object.Rule.Expr)
		}
		for _, set := range []*nftSet{object.Set, object.Map} {
			if set != nil {
				w.sets[nftChain{Family: set.Family, Table: set.Table, Name: set.Name}] = set.Elem
			}
		}
	}
	for _, chain := range hooks {
		w.walk(chain, nil, 0)
	}
	if w.visited > maxRulesSum {
		return nil, fmt.Errorf("read the rules of nft: more than %d are on the ways from prerouting", maxRulesSum)
	}
	return w.found, nil
}

func (w *nftRules) walk(chain nftChain, before []condition, depth int) {
	for _, rule := range w.rules[chain] {
		if w.visited++; w.visited > maxRulesSum || depth > maxJumps {
			return
		}
		conditions := before[:len(before):len(before)]
		for _, statement := range rule {
			for name, argument := range statement {
				switch name {
				case "match":
					conditions = append(conditions, w.condition(chain, argument))
				case "vmap":
					w.choose(chain, argument, conditions, depth)
					continue
				case "redirect", "dnat", "xt":
					w.translates(chain.Family, name, argument, &conditions)
				}
				for _, target := range targets(name, argument) {
					w.walk(nftChain{Family: chain.Family, Table: chain.Table, Name: target}, conditions, depth+1)
				}
			}
		}
	}
}

// anyOf is the Op of a condition that chooses among several ways at random.
const anyOf = "any of"

// choose walks on from a verdict map: each key is a condition of its own way.
func (w *nftRules) choose(chain nftChain, vmap any, before []condition, depth int) {
	left, data := field(vmap, "key"), w.named(chain, field(vmap, "data"))
	if elements := field(data, "set"); elements != nil {
		data = elements
	}
	elements, _ := data.([]any)
	for _, element := range elements {
		pair, _ := element.([]any)
		if len(pair) != 2 {
			continue
		}
		conditions := before[:len(before):len(before)]
		switch {
		case !atRandom(left):
			conditions = append(conditions, condition{Op: "==", Left: left, Right: pair[0]})
		case len(elements) > 1:
			conditions = append(conditions, condition{Op: anyOf})
		}
		for _, target := range targets("vmap", pair[1]) {
			w.walk(nftChain{Family: chain.Family, Table: chain.Table, Name: target}, conditions, depth+1)
		}
	}
}

// atRandom: the key does not depend on what a packet is for.
func atRandom(left any) bool {
	return field(left, "numgen") != nil || field(left, "jhash") != nil || field(left, "symhash") != nil
}

// condition reads a match, with the elements of the set that it names.
func (w *nftRules) condition(chain nftChain, match any) condition {
	parts, _ := match.(map[string]any)
	op, _ := parts["op"].(string)
	return condition{Op: op, Left: parts["left"], Right: w.named(chain, parts["right"])}
}

// named returns the elements of the set or map that a value names, or the value itself.
func (w *nftRules) named(chain nftChain, value any) any {
	if name, ok := value.(string); ok && strings.HasPrefix(name, "@") {
		return w.sets[nftChain{Family: chain.Family, Table: chain.Table, Name: name[1:]}]
	}
	return value
}

// translates records a statement that rewrites destinations. What iptables-nft adds, nft shows by its name alone: a match of it is a
// condition that is not known.
func (w *nftRules) translates(family, name string, argument any, conditions *[]condition) {
	parts, _ := argument.(map[string]any)
	rule := translationRule{Family: family}
	switch kind, _ := parts["name"].(string); {
	case name == "redirect":
		rule.Text = "redirect"
		port, known := portOf(parts)
		if rule.Known, rule.To = known, netip.AddrPortFrom(netip.Addr{}, port); port != 0 {
			rule.Text = fmt.Sprintf("redirect to port %d", port)
		}
	case name == "dnat":
		rule.Text = "dnat"
		port, known := portOf(parts)
		if address, ok := asAddress(parts["addr"]); ok {
			rule.Known, rule.To, rule.Text = known, netip.AddrPortFrom(address, port), "dnat to "+address.String()
			if port != 0 {
				rule.Text = "dnat to " + rule.To.String()
			}
		}
		if to, ok := parts["family"].(string); ok {
			rule.Family = to
		}
	case kind == "REDIRECT" || kind == "DNAT":
		rule.Text = kind
	default:
		if kind, _ := parts["type"].(string); kind != "target" {
			*conditions = append(*conditions, condition{})
		}
		return
	}
	if slices.ContainsFunc(*conditions, func(c condition) bool { return c.Op == anyOf }) {
		rule.Text += " and others"
	}
	rule.Conditions = *conditions
	w.found = append(w.found, rule)
}

// portOf returns what a redirect or DNAT makes the port, 0: it stays. A range or a map of ports is not known.
func portOf(parts map[string]any) (port uint16, known bool) {
	value, named := parts["port"]
	number, known := value.(float64)
	return uint16(number), known || !named
}

// targets are the chains that a statement may go on in: those of a jump or goto, also as a value of a verdict map.
func targets(name string, argument any) (out []string) {
	switch value := argument.(type) {
	case map[string]any:
		if target, ok := value["target"].(string); ok && (name == "jump" || name == "goto") {
			return []string{target}
		}
		if name == "match" {
			return nil
		}
		for key, inner := range value {
			out = append(out, targets(key, inner)...)
		}
	case []any:
		for _, inner := range value {
			out = append(out, targets(name, inner)...)
		}
	}
	return out
}
