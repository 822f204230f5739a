package api

import (
	"encoding/json"
	"net/netip"
)

// AgentStatus answers PathStatus of an agent.
type AgentStatus struct {
	Status
	Server      string            `json:"server,omitempty"`          // name of this host's servers, if it was given
	Controllers []string          `json:"controllers,omitempty"`     // that are connected, and load balancers that take its reports
	Revision    uint64            `json:"revision,omitempty"`        // of the controllers' state that runs
	Services    []string          `json:"services"`                  // whose connections carry cookies here
	Left        []string          `json:"left,omitempty"`            // services that this host was removed from, and whose connections it may have
	IDFiles     []string          `json:"connection_ids,omitempty"`  // paths of what applications make QUIC connection ids by
	TicketFiles []string          `json:"session_tickets,omitempty"` // paths of what applications make TLS session tickets by
	TicketKeys  []TicketKeys      `json:"ticket_keys,omitempty"`     // that these tickets are made and read by
	Joins       []netip.AddrPort  `json:"mptcp,omitempty"`           // where clients with MPTCP are told to join
	Untracked   []netip.AddrPort  `json:"untracked,omitempty"`       // services that the kernel does not track connections of
	Interfaces  map[string]string `json:"interfaces"`                // name -> XDP mode
	Epoch       uint32            `json:"epoch,omitempty"`           // of the key that cookies are written with; 0: none is known
	Echoes      map[uint32]uint64 `json:"echoes"`                    // living connections by the epoch that their client has echoed last; 0: of a key that is gone
	Tunnels     Tunnels           `json:"tunnels"`
	Gateways    []Gateway         `json:"gateways,omitempty"`   // of the network functions of this host
	Probes      []ProbedPort      `json:"probes,omitempty"`     // of services at addresses that this host does not have
	Translated  *TranslatedUse    `json:"translated,omitempty"` // entries of connections whose addresses this host translates
	Problems    []string          `json:"problems"`             // what keeps the agent from its work, each with its remedy
}

// TicketKeys says which keys a service's session tickets are made and read by, without the keys.
type TicketKeys struct {
	Service string   `json:"service"`
	Source  string   `json:"source"`          // controllers, file (--ticket-key) or host: a key of this host alone
	Epoch   uint32   `json:"epoch,omitempty"` // of controllers: that tickets are made by
	Read    []uint32 `json:"read,omitempty"`  // of controllers: that tickets are read by
}

// Tunnels says whose tunnels to its services an agent takes.
type Tunnels struct {
	Limited bool         `json:"limited"`             // those of others than From are dropped
	Open    string       `json:"open,omitempty"`      // why they are not, and what to do
	From    []netip.Addr `json:"from,omitempty"`      // addresses of load balancers, as far as they are known
	Source  string       `json:"source"`              // that the addresses are from: file, controllers
	Foreign uint64       `json:"strangers,omitempty"` // packets of others that were dropped, or would have been
	Last    netip.Addr   `json:"last,omitzero"`       // that the last of them came from
}

// ProbedPort says what became of a SYN, or an empty datagram, to a service's port at an address that this host does not have: a translation of addresses may take it.
type ProbedPort struct {
	At       netip.AddrPort `json:"at"`
	Protocol string         `json:"protocol"`        // tcp, udp
	Client   netip.Addr     `json:"client,omitzero"` // that it seemed to be from
	State    ProbeState     `json:"state"`
	Age      *Seconds       `json:"age_seconds,omitempty"` // since a probe has shown something; absent: none has
}

// UnmarshalJSON reads one. Older agents, which probe TCP alone, name no protocol.
func (p *ProbedPort) UnmarshalJSON(text []byte) error {
	type plain ProbedPort
	read := plain{Protocol: "tcp"}
	err := json.Unmarshal(text, &read)
	*p = ProbedPort(read)
	return err
}

// Packets are what a port is probed with.
func (p *ProbedPort) Packets() string {
	if p.Protocol == "udp" {
		return "datagrams"
	}
	return "SYNs"
}

// TranslatedUse says how full the room for translated connections is.
type TranslatedUse struct {
	Entries uint32  `json:"entries"`     // of connections that have not ended, or only just
	Room    uint32  `json:"room"`        // for so many
	Evicted uint64  `json:"evicted"`     // entries that were lost to others for want of room, since the process began
	Age     Seconds `json:"age_seconds"` // since they were counted
}

// ProbeState is what a probe has shown.
type ProbeState string

// What they show.
const (
	ProbeTaken   ProbeState = "taken"     // by an application
	ProbePassed  ProbeState = "passed on" // by a translation of addresses, past all rules, and nobody has said that it did not arrive: more cannot be seen of UDP
	ProbeRefused ProbeState = "refused"   // by the host of one, where nothing listens
	ProbeLost    ProbeState = "lost"
	ProbeUnknown ProbeState = "not known" // nothing, or too long ago
)

// Gateway is a load balancer that a network function may send to.
type Gateway struct {
	Address netip.Addr `json:"address"`
	Table   int        `json:"table"`                   // routing table with the default route
	Answers bool       `json:"answers"`                 // to BFD
	Used    bool       `json:"used"`                    // the default route leads there
	Heard   *Seconds   `json:"heard_seconds,omitempty"` // since it is known to have lived; absent: never
}
