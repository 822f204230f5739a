package model

import "fmt"

// Implementation constants: what the draft allows, and what the data path has room for.
const (
	MaxQUICServices       = 256 // services with affinity quic
	MaxQUICServerIDLength = 8   // bytes
	MinQUICNonceLength    = 4
	MaxQUICNonceLength    = 18
	MaxQUICLength         = 19 // of server id and nonce: a connection id has 20 bytes at most (RFC 9000 17.2)
	SinglePassLength      = 16
	DefaultServerIDLength = 2
	DefaultNonceLength    = SinglePassLength - DefaultServerIDLength
	QUICConfigs           = 7 // epochs until a config's number is used again: three bits, of which 7 says "none"
)

func (q *QUIC) applyDefaults() {
	setDefault(&q.ServerIDLength, 0, DefaultServerIDLength)
	if q.Algorithm == QUICSinglePass && q.ServerIDLength < SinglePassLength {
		setDefault(&q.NonceLength, 0, SinglePassLength-q.ServerIDLength)
	}
	setDefault(&q.NonceLength, 0, DefaultNonceLength)
}

// validateQUIC refuses what connection ids cannot say, and what load balancers cannot know of QUIC.
func (s *Service) validateQUIC(path string, found *findings) {
	q := &s.QUIC
	if s.Health.Check == CheckQUIC && s.Protocol != ProtocolUDP {
		found.add(path+".health.check", "use tcp, tls, http or https", "QUIC runs over udp")
	}
	if s.Affinity != AffinityQUIC {
		if *q != (QUIC{}) {
			found.add(path+".quic", "remove it, or use affinity: quic", "affinity %s goes by no connection ids", s.Affinity)
		}
		return
	}
	if s.Protocol != ProtocolUDP {
		found.add(path+".affinity", "use protocol: udp", "QUIC runs over udp")
	}
	if (s.CountsOpen() || s.FollowsLoad()) && (s.Load.Source == LoadConnections || s.Load.Source == LoadEstimate) {
		found.add(path+".load.source", "use endpoint, cpu, packets or bytes", "%s by %s counts open connections, and the end of a QUIC connection is encrypted", s.Dispatch, s.Load.Source)
	}
	path += ".quic"
	checkChoice(path+".algorithm", quicNames, q.Algorithm, found)
	both := int(q.ServerIDLength) + int(q.NonceLength)
	switch {
	case q.ServerIDLength < 1 || q.ServerIDLength > MaxQUICServerIDLength:
		found.add(path+".server_id_length", fmt.Sprintf("use 1 to %d", MaxQUICServerIDLength), "%d is out of range", q.ServerIDLength)
	case q.NonceLength < MinQUICNonceLength || q.NonceLength > MaxQUICNonceLength:
		found.add(path+".nonce_length", fmt.Sprintf("use %d to %d", MinQUICNonceLength, MaxQUICNonceLength), "%d is out of range", q.NonceLength)
	case q.Algorithm == QUICSinglePass && both != SinglePassLength:
		found.add(path+".nonce_length", fmt.Sprintf("use %d, or algorithm: four-pass", SinglePassLength-q.ServerIDLength),
			"server id and nonce have %d bytes, and single-pass encrypts %d", both, SinglePassLength)
	case q.Algorithm == QUICFourPass && both == SinglePassLength:
		found.add(path+".algorithm", "use single-pass, or another nonce_length", "server id and nonce have %d bytes: one pass is enough, and readers expect one", both)
	case q.Algorithm == QUICFourPass && q.ServerIDLength > q.NonceLength:
		found.add(path+".nonce_length", fmt.Sprintf("use at least %d", q.ServerIDLength), "four-pass hides the server id in the first half, and it is longer than that")
	case both > MaxQUICLength:
		found.add(path+".nonce_length", fmt.Sprintf("use at most %d", MaxQUICLength-q.ServerIDLength), "server id and nonce have %d bytes, and a connection id has room for %d", both, MaxQUICLength)
	}
}
