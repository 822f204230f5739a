// What both ends of a stream of the control protocol go by.
package api

import (
	"net/http"
	"time"
)

// ControlProtocol is the version of the control protocol that this program speaks.
const ControlProtocol = 1

// How long one end bears the other's silence.
const (
	StreamSilence = 2 * time.Second // until it is asked for a sign of life
	StreamDead    = 8 * time.Second // after that. Peers that were only busy would all join again, and keep everybody busy
)

// AlivePeriod is how often an end says that it works. Without a word for health.Silent it is silent: what it said before does not count
// as of now.
const AlivePeriod = time.Second

// StreamHTTP2 is how both ends notice that the other is gone.
func StreamHTTP2() *http.HTTP2Config {
	return &http.HTTP2Config{SendPingTimeout: StreamSilence, PingTimeout: StreamDead, WriteByteTimeout: StreamSilence + StreamDead}
}
