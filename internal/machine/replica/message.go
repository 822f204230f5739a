// Package replica replicates the entries of a connection table on chains of nodes, without ever stopping for a change of nodes: Anolis
// ("Anolis: A Scalable, Fault-Tolerant Load Balancer for Stateful Network Functions", section 4). Node and Controller are pure state
// machines: messages and ticks in, messages out. Messages may be lost, repeated and overtaken; nodes may see different views.
//
// The rules that the paper lacks are marked in Rules, with what each is for.
package replica

import (
	"encoding/binary"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// SignedRing is what controllers sign a ring as (pki.Sign).
const SignedRing = "a ring of load balancers"

// None is what From and To say of the controller, and Last of nobody. No node has this number.
const None uint16 = 0

// Owner is the server of a connection. 0: none.
type Owner uint32

// Kind is what a message is.
type Kind uint8

// All kinds of message. The first three carry a packet of a connection.
const (
	WhoOwns   Kind = iota + 1 // forwarder to tail: whose connection is Key? Owner is proposed
	Write                     // down the chain, from the head: Key is Owner's
	Owns                      // tail to Forwarder: Key is Owner's
	Copy                      // common node to another of the chain: Transfer
	CopyAck                   // the answer: Transfer has what Copy did not say, of those before the first common node
	NewView                   // controller to nodes: View, Peers
	ViewAck                   // the answer: View and Synced are those of the node
	StartSync                 // controller to common node: Sync, Range, Places
	SyncDone                  // the answer, when all is done
)

// Message goes from a node or the controller to another. What it points to is never changed once it is sent.
type Message struct {
	Kind      Kind
	Hops      uint8  // how often it, or the message that led to it, was sent
	From, To  uint16 // nodes; None: the controller
	Forwarder uint16 // node that has the packet's answer to come
	Last      uint16 // of Write: chain node that sent it; None: nobody
	Owner     Owner
	Record    Owner  // of WhoOwns and Write: what Forwarder knew when it asked; 0: nothing
	Unheard   bool   // of Owns: the chain has not heard of the packet, so nothing is to be noted
	View      uint32 // version of the list that the sender has
	Chain     uint32 // of WhoOwns and Write: since which version the key's chain is what it is, as the sender knows it
	Synced    uint32 // of ViewAck
	Sync      uint32 // of StartSync and SyncDone
	Key       ring.Key
	Range     ring.Range  // of StartSync
	Places    ring.Places // of StartSync

	Transfer *Transfer // of Copy and CopyAck
	Peers    *Peers    // of NewView
}

// Transfer is a part of a sync.
type Transfer struct {
	Sync      uint32
	Number    uint32   // of this message within the sync
	Second    bool     // round: what has no range to compare
	Low, High ring.Key // both included; what lies between and is not in Entries, the sender did not have
	Entries   []Entry
}

// Entry is a connection and whose it is.
type Entry struct {
	Key   ring.Key
	Owner Owner
}

// Peers is a view.
type Peers struct {
	List      ring.List
	Since     []uint32 // by arc of List: the version since which its chain is what it is
	Synced    uint32   // version that is known to be synced
	Cancelled []uint32 // syncs since then that must end
}

// ActionKind is what an action is.
type ActionKind uint8

// All kinds of action.
const (
	Send    ActionKind = iota + 1 // Message to Message.To
	Forward                       // the packet of connection Message.Key to server Message.Owner
	Save                          // Controller.State, durably, before the actions that follow are done
)

// Action is what a machine wants done.
type Action struct {
	Kind    ActionKind
	Message Message
}

// Append appends all of a message to text, so that two messages are the same when their texts are.
func (m *Message) Append(text []byte) []byte {
	text = append(text, byte(m.Kind), m.Hops)
	for _, node := range [...]uint16{m.From, m.To, m.Forwarder, m.Last} {
		text = binary.BigEndian.AppendUint16(text, node)
	}
	text = append(text, flag(m.Unheard), m.Places.First, m.Places.After)
	for _, number := range [...]uint32{uint32(m.Owner), uint32(m.Record), m.View, m.Chain, m.Synced, m.Sync, uint32(m.Range.Low), uint32(m.Range.High)} {
		text = binary.BigEndian.AppendUint32(text, number)
	}
	text = binary.BigEndian.AppendUint64(text, uint64(m.Key))
	if m.Transfer != nil {
		text = m.Transfer.append(text)
	}
	if m.Peers != nil {
		text = m.Peers.append(text)
	}
	return text
}

func (t *Transfer) append(text []byte) []byte {
	text = binary.BigEndian.AppendUint32(text, t.Sync)
	text = binary.BigEndian.AppendUint32(text, t.Number)
	text = append(text, flag(t.Second))
	text = binary.BigEndian.AppendUint64(text, uint64(t.Low))
	text = binary.BigEndian.AppendUint64(text, uint64(t.High))
	for _, entry := range t.Entries {
		text = binary.BigEndian.AppendUint64(text, uint64(entry.Key))
		text = binary.BigEndian.AppendUint32(text, uint32(entry.Owner))
	}
	return text
}

func (p *Peers) append(text []byte) []byte {
	text = binary.BigEndian.AppendUint32(appendList(text, p.List), p.Synced)
	for _, version := range p.Since {
		text = binary.BigEndian.AppendUint32(text, version)
	}
	for _, sync := range p.Cancelled {
		text = binary.BigEndian.AppendUint32(text, sync)
	}
	return text
}

func appendList(text []byte, list ring.List) []byte {
	text = binary.BigEndian.AppendUint32(text, uint32(len(list)))
	for _, member := range list {
		text = binary.BigEndian.AppendUint16(text, member.Node)
		text = binary.BigEndian.AppendUint32(text, member.Life)
		text = binary.BigEndian.AppendUint32(text, uint32(member.At))
	}
	return text
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}
