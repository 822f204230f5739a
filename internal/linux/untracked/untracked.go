// Package untracked keeps a table of nftables that takes services out of connection tracking, whose translation hooks throw away the socket
// that a packet was given at tc (nf_nat_ipv4_local_in, nf_nat_ipv6_local_in): connections of session tls would be reset.
package untracked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Implementation constants: registers of nftables are numbered by 4 bytes from here on.
const register32 = unix.NFT_REG32_00

// A Table is one of nftables, that nobody else changes.
type Table struct{ Name string }

// TableOf is that of an instance of the agent.
func TableOf(instance string) Table { return Table{"ballast_" + instance} }

// family is what the two families of addresses differ in.
type family struct {
	name        string
	protocol    byte   // of meta nfproto
	addresses   uint32 // bytes of an address
	source      uint32 // where it is in the header
	destination uint32
	address     nftables.SetDatatype
}

var families = []family{
	{"ipv4", unix.NFPROTO_IPV4, 4, 12, 16, nftables.TypeIPAddr},
	{"ipv6", unix.NFPROTO_IPV6, 16, 8, 24, nftables.TypeIP6Addr},
}

// Set replaces the table in one transaction: both directions of TCP at these addresses and ports are not tracked. None: it is removed.
func (t Table) Set(at []netip.AddrPort) error {
	if len(at) == 0 {
		return t.Remove()
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: t.Name}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	in, out := t.chain(c, table, "prerouting", nftables.ChainHookPrerouting), t.chain(c, table, "output", nftables.ChainHookOutput)
	for _, f := range families {
		set := &nftables.Set{Table: table, Name: f.name, Concatenation: true,
			KeyType: nftables.MustConcatSetType(f.address, nftables.TypeInetService)}
		if err := c.AddSet(set, elements(f, at)); err != nil {
			return fmt.Errorf("make table inet %s of nftables: %w", t.Name, err)
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: rule(f, set, f.destination, 2)})
		c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: rule(f, set, f.source, 0)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make table inet %s of nftables: %w", t.Name, err)
	}
	return nil
}

func (t Table) chain(c *nftables.Conn, table *nftables.Table, name string, hook *nftables.ChainHook) *nftables.Chain {
	return c.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw})
}

func elements(f family, at []netip.AddrPort) (out []nftables.SetElement) {
	for _, a := range at {
		if address := a.Addr().AsSlice(); len(address) == int(f.addresses) {
			out = append(out, nftables.SetElement{Key: append(binary.BigEndian.AppendUint16(address, a.Port()), 0, 0)})
		}
	}
	return out
}

// rule is: nfproto FAMILY, TCP, address . port in the set: notrack.
func rule(f family, set *nftables.Set, address, port uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{f.protocol}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: register32, Base: expr.PayloadBaseNetworkHeader, Offset: address, Len: f.addresses},
		&expr.Payload{DestRegister: register32 + f.addresses/4, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
		&expr.Lookup{SourceRegister: register32, SetName: set.Name, SetID: set.ID},
		&expr.Notrack{},
	}
}

// Holds tells whether the table is there, whole, and names just these addresses and ports: who loads rules may have flushed all.
func (t Table) Holds(at []netip.AddrPort) (bool, error) {
	c, table, err := t.find()
	if err != nil || table == nil {
		return len(at) == 0 && err == nil, err
	}
	for _, name := range []string{"prerouting", "output"} {
		rules, err := c.GetRules(table, &nftables.Chain{Name: name, Table: table})
		if err != nil || len(rules) != len(families) {
			return false, ignoreMissing(err)
		}
	}
	for _, f := range families {
		set, err := c.GetSetByName(table, f.name)
		if err != nil {
			return false, ignoreMissing(err)
		}
		have, err := c.GetSetElements(set)
		if err != nil {
			return false, ignoreMissing(err)
		}
		want := elements(f, at)
		if len(have) != len(want) || slices.ContainsFunc(want, func(w nftables.SetElement) bool {
			return !slices.ContainsFunc(have, func(h nftables.SetElement) bool { return slices.Equal(h.Key, w.Key) })
		}) {
			return false, nil
		}
	}
	return true, nil
}

// Remove removes the table, if there is one.
func (t Table) Remove() error {
	c, table, err := t.find()
	if err != nil || table == nil {
		return err
	}
	c.DelTable(table)
	if err := ignoreMissing(c.Flush()); err != nil {
		return fmt.Errorf("remove table inet %s of nftables: %w", t.Name, err)
	}
	return nil
}

// find returns no table if there is none, or the kernel has no nftables.
func (t Table) find() (*nftables.Conn, *nftables.Table, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if noTables(err) {
		return c, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list tables of nftables: %w", err)
	}
	if i := slices.IndexFunc(tables, func(have *nftables.Table) bool { return have.Name == t.Name }); i >= 0 {
		return c, tables[i], nil
	}
	return c, nil, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
