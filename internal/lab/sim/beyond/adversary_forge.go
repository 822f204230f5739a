package beyond

import (
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// forgedCookies are tried in each way.
const forgedCookies = 500_000

// reportForged reports how many forged cookies a load balancer that has one key takes for those of a server, and how many for the victim's.
func reportForged(run *sim.Run, key cookie.Key) {
	draws := random.New(run.Seed, "forgers")
	var guessed, replayed, turned servedBy
	for range forgedCookies {
		own, other := clientFrom(draws.Uint64()), clientFrom(draws.Uint64())
		hash, otherHash := cookie.FlowHash(key, own, talkPort), cookie.FlowHash(key, other, talkPort)
		guessed.add(readCookie(uint16(draws.Uint64())&(1<<talkCookieBits-1), hash))

		good := cookie.Encode(talkCookieBits, talkEpoch, aimVictim, otherHash)
		replayed.add(readCookie(good, hash))

		server := uint16(1 + draws.Intn(aimServers))
		turned.add(readCookie(cookie.Encode(talkCookieBits, talkEpoch, server, hash)^server^aimVictim, hash))
	}
	run.Share("guess-any", guessed.any, forgedCookies)
	run.Share("guess-victim", guessed.victim, forgedCookies)
	run.Share("replay-any", replayed.any, forgedCookies)
	run.Share("replay-victim", replayed.victim, forgedCookies)
	run.Share("turned-victim", turned.victim, forgedCookies)
}

// readCookie is what a load balancer that has one key makes of a cookie (bpf/lb/ladder/ladder.h, steer_by_carried); 0: it is of another key.
func readCookie(forged uint16, hash uint64) (plain uint16) {
	if cookie.EpochBit(talkCookieBits, uint32(forged)) != talkEpoch {
		return 0
	}
	return cookie.Decode(talkCookieBits, uint32(forged), hash)
}

// servedBy counts packets that reach some server, and the victim.
type servedBy struct{ any, victim int64 }

func (s *servedBy) add(id uint16) {
	if id >= 1 && id <= aimServers {
		s.any++
	}
	if id == aimVictim {
		s.victim++
	}
}
