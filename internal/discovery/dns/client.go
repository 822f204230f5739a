package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Implementation constants.
const (
	queryTimeout = 2 * time.Second
	rounds       = 2 // over all resolvers
	maxResolvers = 3 // as resolv.conf(5) has them
	maxAliases   = 8
	udpSize      = 1232 // that no network fragments (DNS flag day 2020)
)

// client asks resolvers. Each query has a random id and a socket, and so a port, of its own; what is no answer to it is dropped. That is all there is against
// forged answers over UDP: see overTCP.
type client struct {
	resolver string // address, or address:port; empty: those of file
	file     string // as resolv.conf(5)
	overTCP  bool
	timeout  time.Duration
}

// Nothing is the error of a name that has no such records, as far as the resolver knows.
type Nothing struct {
	Name   string
	Exists bool   // it has others
	Kind   string // of record
}

// Error says what there is not.
func (n *Nothing) Error() string {
	if n.Exists {
		return fmt.Sprintf("%s has no %s record", n.Name, n.Kind)
	}
	return n.Name + " does not exist (NXDOMAIN)"
}

func asNothing(err error, nothing **Nothing) bool { return errors.As(err, nothing) }

// records returns those of a name, and follows aliases. Its error is *Nothing where there are none; every other one says that nobody knows.
func (c *client) records(ctx context.Context, name string, kind uint16, ttl *ttl) ([]dns.RR, error) {
	owner := dns.Fqdn(strings.ToLower(name))
	seen := map[string]bool{}
	for {
		asked := owner
		answer, err := c.query(ctx, asked, kind)
		if err != nil {
			return nil, err
		}
		for {
			found, alias := of(answer, owner, kind, ttl)
			if len(found) > 0 {
				return found, nil
			}
			if alias == "" {
				break
			}
			if seen[owner] = true; len(seen) > maxAliases {
				return nil, fmt.Errorf("%s: more than %d aliases in a row", name, maxAliases)
			}
			if owner = alias; seen[owner] {
				return nil, fmt.Errorf("%s: its aliases (CNAME) go round in a circle", name)
			}
		}
		if answer.Rcode == dns.RcodeNameError || owner == asked {
			negative(answer, ttl)
			return nil, &Nothing{Name: strings.TrimSuffix(owner, "."), Exists: answer.Rcode != dns.RcodeNameError, Kind: dns.TypeToString[kind]}
		} // else the resolver has not followed the alias
	}
}

// of returns an owner's records of a kind, or what it is an alias of. Records of other owners in an answer say nothing.
func of(answer *dns.Msg, owner string, kind uint16, ttl *ttl) (found []dns.RR, alias string) {
	for _, record := range answer.Answer {
		header := record.Header()
		if header.Class != dns.ClassINET || !strings.EqualFold(header.Name, owner) {
			continue
		}
		cname, isAlias := record.(*dns.CNAME)
		switch {
		case header.Rrtype == kind:
			found = append(found, record)
		case isAlias:
			alias = strings.ToLower(cname.Target)
		default:
			continue
		}
		ttl.see(header.Ttl)
	}
	return found, alias
}

// negative takes the time for which there is nothing (RFC 2308, 5).
func negative(answer *dns.Msg, ttl *ttl) {
	for _, record := range answer.Ns {
		if soa, ok := record.(*dns.SOA); ok {
			ttl.see(min(soa.Hdr.Ttl, soa.Minttl))
		}
	}
}

// query asks one resolver after the other. An answer that the name does not exist is one; that a server failed is none.
func (c *client) query(ctx context.Context, name string, kind uint16) (answer *dns.Msg, err error) {
	resolvers, err := c.resolvers()
	if err != nil {
		return nil, err
	}
	for range rounds {
		for _, resolver := range resolvers {
			if answer, err = c.exchange(ctx, resolver, name, kind); err == nil {
				return answer, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
		}
	}
	return nil, err
}

func (c *client) resolvers() (list []string, err error) {
	if c.resolver != "" {
		if _, _, err := net.SplitHostPort(c.resolver); err == nil {
			return []string{c.resolver}, nil
		}
		return []string{net.JoinHostPort(strings.Trim(c.resolver, "[]"), "53")}, nil
	}
	config, err := dns.ClientConfigFromFile(c.file)
	if err != nil {
		return nil, fmt.Errorf("find resolvers: %w: name one by servers.resolver", err)
	}
	for _, server := range config.Servers[:min(len(config.Servers), maxResolvers)] {
		list = append(list, net.JoinHostPort(server, config.Port))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s names no resolver: name one by servers.resolver", c.file)
	}
	return list, nil
}

// exchange asks one resolver, once more by TCP where the answer does not fit, and once more without EDNS where that is not understood.
func (c *client) exchange(ctx context.Context, resolver, name string, kind uint16) (*dns.Msg, error) {
	network, edns := "udp", true
	if c.overTCP {
		network = "tcp"
	}
	for {
		answer, err := c.ask(ctx, network, resolver, name, kind, edns)
		switch {
		case err != nil:
			return nil, fmt.Errorf("ask %s for %s %s: %w", resolver, strings.TrimSuffix(name, "."), dns.TypeToString[kind], err)
		case answer.Truncated && network == "udp":
			network = "tcp"
		case edns && (answer.Rcode == dns.RcodeFormatError || answer.Rcode == dns.RcodeNotImplemented):
			edns = false
		case answer.Truncated:
			return nil, fmt.Errorf("ask %s for %s %s: the answer is truncated, by TCP as well", resolver, strings.TrimSuffix(name, "."), dns.TypeToString[kind])
		case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
			return nil, fmt.Errorf("ask %s for %s %s: the resolver failed (%s)", resolver, strings.TrimSuffix(name, "."), dns.TypeToString[kind], dns.RcodeToString[answer.Rcode])
		default:
			return answer, nil
		}
	}
}

var errOther = errors.New("the answer is to another question")

func (c *client) ask(ctx context.Context, network, resolver, name string, kind uint16, edns bool) (*dns.Msg, error) {
	question := new(dns.Msg)
	question.SetQuestion(name, kind)
	if edns {
		question.SetEdns0(udpSize, false)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	exchanger := dns.Client{Net: network, Timeout: c.timeout}
	answer, _, err := exchanger.ExchangeContext(ctx, question, resolver)
	if err != nil {
		return nil, err
	}
	want := question.Question[0]
	if !answer.Response || answer.Opcode != dns.OpcodeQuery || len(answer.Question) != 1 {
		return nil, errOther
	}
	if have := answer.Question[0]; !strings.EqualFold(have.Name, want.Name) || have.Qtype != want.Qtype || have.Qclass != want.Qclass {
		return nil, errOther
	}
	return answer, nil
}
