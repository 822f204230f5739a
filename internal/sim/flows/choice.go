package flows

// Implementation constants: what the queue keeps of a connection that carries its server.
const (
	serverBits = 24
	serverMask = 1<<serverBits - 1
)

// choiceSteerer asks a policy once for each connection. Changes of servers break none, only their failures do.
type choiceSteerer struct {
	chooser  Chooser
	world    *World
	failures []uint32 // by server: how often it has failed, in the bits above serverBits; the last 256 times are told apart
}

func (s *choiceSteerer) arrive(flow uint64) (server, payload uint32) {
	server = s.chooser.Choose(flow, s.world.loads)
	return server, server | s.failures[server]
}

func (s *choiceSteerer) end(payload uint32) (server uint32, depth int, gone bool) {
	server = payload & serverMask
	return server, 1, payload&^serverMask != s.failures[server]
}

func (s *choiceSteerer) fail(server uint32) { s.failures[server] += 1 << serverBits }

func (s *choiceSteerer) addServer() {
	if len(s.failures) > serverMask {
		panic("flows: more servers than a connection can tell apart")
	}
	s.failures = append(s.failures, 0)
}
