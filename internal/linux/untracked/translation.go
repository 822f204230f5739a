package untracked

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Tracks tells whether the kernel has connection tracking, in this network namespace.
func Tracks() (bool, error) {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Tracking tells whether the kernel tracks connections now: it does where some rule wants it.
func Tracking() (bool, error) {
	content, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	count, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64)
	return count > 0, err
}

// Translation names what translates addresses, empty: nothing does. Rules of iptables are chains of nftables, those of iptables-legacy
// are not.
func Translation() (string, error) {
	chain, err := natChain()
	if err == nil && chain != "" {
		return chain, nil
	}
	for _, command := range []string{"ip", "ip6"} {
		content, unread := os.ReadFile("/proc/thread-self/net/" + command + "_tables_names")
		if unread != nil && !errors.Is(unread, fs.ErrNotExist) {
			err = errors.Join(err, unread)
		}
		if slices.Contains(strings.Fields(string(content)), "nat") {
			return "table nat of " + command + "tables-legacy", nil
		}
	}
	return "", err
}

// natChain names a chain of nftables.
func natChain() (string, error) {
	c, err := nftables.New()
	if err != nil {
		return "", fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if noTables(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, chain := range chains {
		if chain.Type == nftables.ChainTypeNAT {
			return fmt.Sprintf("chain %s of table %s", chain.Name, chain.Table.Name), nil
		}
	}
	return "", nil
}

// noTables: the kernel has no nftables.
func noTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// There tells whether there is a table of that name.
func (t Table) There() (bool, error) {
	_, table, err := t.find()
	return table != nil, err
}
