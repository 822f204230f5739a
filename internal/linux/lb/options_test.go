package lb

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// optionPatterns are orders of TCP options seen in the wild: Cheetah's Table I and systems of today. TTTTTTTT stands for TSval,
// EEEEEEEE for TSecr.
var optionPatterns = []struct{ name, hex string }{
	{"nop nop ts: nearly everything", "0101080aTTTTTTTTEEEEEEEE"},
	{"nop nop ts, sack of one block", "0101080aTTTTTTTTEEEEEEEE0101050a0000000100000002"},
	{"nop nop ts, sack of three blocks", "0101080aTTTTTTTTEEEEEEEE0101051a000000010000000200000003000000040000000500000006"},
	{"linux syn: mss sackok ts nop wscale", "020405b40402080aTTTTTTTTEEEEEEEE01030307"},
	{"linux syn without sack: mss nop nop ts nop wscale", "020405b40101080aTTTTTTTTEEEEEEEE01030307"},
	{"syn without wscale: mss sackok ts", "020405b40402080aTTTTTTTTEEEEEEEE"},
	{"macos syn: mss nop wscale nop nop ts sackok eol", "020405b4010303060101080aTTTTTTTTEEEEEEEE04020000"},
	{"freebsd syn: mss nop wscale sackok ts", "020405b4010303060402080aTTTTTTTTEEEEEEEE"},
	{"windows syn with timestamps: mss nop wscale sackok ts", "020405b4010303080402080aTTTTTTTTEEEEEEEE"},
	{"linux syn with tfo: mss sackok ts nop wscale tfo", "020405b40402080aTTTTTTTTEEEEEEEE010303072202"},
	{"mptcp: nop nop ts mp_capable", "0101080aTTTTTTTTEEEEEEEE1e0c81810102030405060708"},
	{"ts at an odd offset", "01080aTTTTTTTTEEEEEEEE00"},
	{"ts first", "080aTTTTTTTTEEEEEEEE0101"},
	{"ts last of forty bytes", "020405b40101050a0000000100000002fd0604d20102080aTTTTTTTTEEEEEEEE"},
	{"md5 before ts", "0101131200112233445566778899aabbccddeeff080aTTTTTTTTEEEEEEEE"},
}

func optionBytes(pattern string, value, echo uint32) []byte {
	fill := func(word uint32) string { return hex.EncodeToString(binary.BigEndian.AppendUint32(nil, word)) }
	b, err := hex.DecodeString(strings.NewReplacer("TTTTTTTT", fill(value), "EEEEEEEE", fill(echo)).Replace(pattern))
	mustSet(err)
	return b
}

func TestTheTimestampIsFoundInEveryOrderOfOptions(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for _, pattern := range optionPatterns {
		t.Run(pattern.name, func(t *testing.T) {
			w.TB = t
			for name, f := range map[string]flow{"web": flowTo(vip4, 80, 1), "web6": flowTo(vip6, 80, 1)} {
				options := optionBytes(pattern.hex, 1234, w.cookieFor(name, f, 3, 1))
				for _, payload := range []string{"", "GET"} {
					got, want := w.checkVerdict(f.frame(f.tcp(ack, options, []byte(payload))), lbVerdictFORWARDED_BY_COOKIE)
					if want.serverOf(got.frame) != 3 {
						t.Fatal("the cookie was not read from the option")
					}
				}
				w.checkVerdict(f.frame(f.tcp(syn, optionBytes(pattern.hex, 1234, 0), nil)), lbVerdictFORWARDED_NEW)
			}
		})
	}
}

// The last four patterns are unknown to timestamp_fast. SYNs of sessions are read by two programs.
func TestSearchesForTheTimestampAreCounted(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, withSessions))
	flows := map[string]flow{"web": flowTo(vip4, 80, 1), "web6": flowTo(vip6, 80, 1)}
	searches := func(name string) uint64 {
		n, err := w.lb.TimestampSearches(w.tables.Places()[name])
		mustSet(err)
		return n
	}
	for i, pattern := range optionPatterns {
		var want uint64
		if i >= len(optionPatterns)-4 {
			want = 1
		}
		for name, f := range flows {
			for _, flags := range []byte{syn, ack} {
				before := searches(name)
				w.runOnly(f.frame(f.tcp(flags, optionBytes(pattern.hex, 1234, w.cookieFor(name, f, 3, 1)), nil)))
				if n := searches(name) - before; n != want {
					t.Errorf("%s, %s, flags %#x: %d searches, want %d", pattern.name, name, flags, n, want)
				}
			}
		}
	}
	mustSet(w.lb.ResetVerdictTraffic(w.tables.Places()["web"].Number))
	if searches("web") != 0 || searches("web6") == 0 {
		t.Errorf("after the reset of web: %d of web, %d of web6", searches("web"), searches("web6"))
	}
}

func TestPayloadThatLooksLikeATimestampIsNone(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	fake := timestamps(1, w.cookieFor("web", f, 2, 1))
	w.checkVerdict(f.frame(f.tcp(ack, nil, fake)), lbVerdictFORWARDED_NO_TIMESTAMP)
	w.checkVerdict(f.frame(f.tcp(ack, []byte{2, 4, 5, 0xb4}, fake)), lbVerdictFORWARDED_NO_TIMESTAMP)
	w.checkVerdict(f.frame(f.tcp(ack, []byte{2, 4, 5, 0xb4, 4, 2, 0, 0}, fake)), lbVerdictFORWARDED_NO_TIMESTAMP)
}

// Promise: A packet whose options cannot be parsed is handled as one without timestamps, and counted.
func TestOptionsThatCannotBeReadFallToPlacement(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	for name, options := range map[string][]byte{
		"runs past the header":       {8, 10, 0, 0, 0, 0, 0, 0},
		"length 0":                   {1, 5, 0, 0},
		"length 1":                   {1, 1, 8, 1},
		"kind without length":        {1, 1, 1, 8},
		"timestamp of wrong length":  {8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"another option of length 0": {2, 4, 5, 0xb4, 77, 0, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8},
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			for _, flags := range []byte{syn, ack, rst, fin | ack} {
				w.checkVerdict(f.frame(f.tcp(flags, options, nil)), lbVerdictFORWARDED_BAD_OPTIONS)
			}
		})
	}
}

// Promise: TCP-AO segments are not marked, and go by placement from the SYN on.
func TestWhatFollowsTheEndOfOptionsOrAuthenticationIsNotRead(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	echo := w.cookieFor("web", f, 2, 1)
	for _, before := range [][]byte{{0, 0}, {29, 6, 1, 2, 3, 4}} {
		options := append(before, timestamps(1, echo)[2:]...)
		w.checkVerdict(f.frame(f.tcp(ack, options, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
	}
}

// anyOptions are lists of options that are mostly well-formed.
func anyOptions(t *rapid.T, echo uint32) []byte {
	var options []byte
	for range rapid.IntRange(0, 6).Draw(t, "options") {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0, 1:
			options = append(options, 1)
		case 2, 3, 4:
			options = append(options, timestamps(7, echo)[2:]...)
		case 5:
			options = append(options, 0)
		case 6:
			options = append(options, rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "noise")...)
		case 7:
			options = append(options, 29, 4, 1, 2)
		default:
			size := rapid.IntRange(2, 12).Draw(t, "size")
			options = append(options, append([]byte{rapid.Byte().Draw(t, "other"), byte(size)}, make([]byte, size-2)...)...)
		}
	}
	return options[:min(len(options), 40)]
}

func TestAnyOptionsAreReadAsTheReferenceReadsThem(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	rapid.Check(t, func(rt *rapid.T) {
		f := flowTo(vip4, 80, rapid.IntRange(0, 3).Draw(rt, "client"))
		options := anyOptions(rt, w.cookieFor("web", f, rapid.Uint16Range(0, 4).Draw(rt, "id"), 1))
		flags := rapid.SampledFrom([]byte{syn, ack, psh | ack, fin | ack, rst, rst | ack, syn | ack, 0}).Draw(rt, "flags")
		w.TB = quiet{t, rt}
		w.check(f.frame(f.tcp(flags, options, []byte("data"))))
	})
}

// quiet reports to rapid, which prints the seed and shrinks, what a world finds.
type quiet struct {
	testing.TB
	rt *rapid.T
}

func (q quiet) Helper()                           { q.rt.Helper() }
func (q quiet) Fatal(args ...any)                 { q.rt.Fatal(args...) }
func (q quiet) Fatalf(format string, args ...any) { q.rt.Fatalf(format, args...) }
