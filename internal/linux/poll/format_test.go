package poll

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAllFormatsAreUnderstood(t *testing.T) {
	all := Status{HasOutstanding: true, Outstanding: 12.5, Capacity: 256, HasCPU: true, CPU: 0.35, Answered: 81234, Failed: 17}
	for name, c := range map[string]struct {
		text string
		want Status
	}{
		"JSON":                   {`{"outstanding": 12.5, "capacity": 256, "answered": 81234, "failed": 17, "cpu": 0.35}`, all},
		"JSON with what it must": {" \n{\"outstanding\":0}\n", Status{HasOutstanding: true}},
		"JSON of the CPU":        {`{"cpu":1}`, Status{HasCPU: true, CPU: 1}},
		"plain":                  {"# load of web\noutstanding 12.5\ncapacity 256\n\nanswered 81234\nfailed 17\r\ncpu\t0.35", all},
		"nginx": {"Active connections: 291 \nserver accepts handled requests\n 16630948 16630940 31070465 \nReading: 6 Writing: 179 Waiting: 106 \n",
			Status{HasOutstanding: true, Outstanding: 184, Answered: 31070465, Failed: 8}},
		"idle nginx": {"Active connections: 1 \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n",
			Status{HasOutstanding: true, Answered: 1}},
		"nginx between two thoughts": {"Active connections: 1 \nserver accepts handled requests\n 1 2 1 \nReading: 0 Writing: 1 Waiting: 5 \n",
			Status{HasOutstanding: true, Answered: 1}},
	} {
		if have, err := parse([]byte(c.text)); err != nil || have != c.want {
			t.Errorf("%s: have %+v, %v, want %+v", name, have, err, c.want)
		}
	}
}

// Promise: A load endpoint that answers garbage, slowly or without end is ignored, and the next source counts.
// Also held by TestPollsAreBounded.
func TestGarbageIsRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "the answer is empty"},
		{" \n", "the answer is empty"},
		{"<html><body>hello</body></html>", `line "<html><body>hello</body></html>" of the answer is not a name and a number`},
		{strings.Repeat("x", 4000), "..."},
		{"busy 3", `unknown name "busy"`},
		{"answered 3", "the answer has neither outstanding nor cpu"},
		{"outstanding -1", `outstanding is "-1": it has to be a number from 0 to 4294967295`},
		{"outstanding NaN", `outstanding is "NaN": it has to be a number`},
		{"outstanding inf", `outstanding is "inf": it has to be a number`},
		{"outstanding 1\noutstanding 2", `"outstanding" is given twice`},
		{"outstanding 1\ncpu 35", `cpu is "35": it has to be a number from 0 to 1`},
		{"outstanding 1\ncapacity 0", `capacity is "0": it has to be above 0`},
		{"outstanding 1\nfailed 1.5", `failed is "1.5": it has to be a whole number, 0 or more`},
		{"outstanding 1 2", `line "outstanding 1 2" of the answer is not a name and a number`},
		{`{"outstanding": "1"}`, `"outstanding" of the answer is no number`},
		{`{"outstanding": null}`, `"outstanding" of the answer is no number`},
		{`{"outstanding": {"now": 1}}`, `"outstanding" of the answer is no number`},
		{`{"outstanding": 1, "outstanding": 1}`, `"outstanding" is given twice`},
		{`{"outstanding": 1} {}`, "the answer goes on after the object"},
		{`{"outstanding": 1`, "the answer is not JSON"},
		{`{"Outstanding": 1}`, `unknown name "Outstanding"`},
		{`{}`, "the answer has neither outstanding nor cpu"},
		{`{outstanding: 1}`, "the answer is not JSON"},
		{"Active connections: many", "is not that of nginx's stub_status"},
		{"Active connections: 1\nserver accepts handled requests\n1 1 1\nReading: 0 Writing: 1 Waiting: 0 and more", "is not that of nginx's stub_status"},
		{"Active connections: -1\nserver accepts handled requests\n1 1 1\nReading: 0 Writing: 1 Waiting: 0", "is not that of nginx's stub_status"},
	} {
		if have, err := parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%q: have %+v, %v, want %q", c.text, have, err, c.want)
		}
	}
}

func TestNoAnswerMakesImpossibleNumbers(t *testing.T) {
	pieces := rapid.SampledFrom([]string{"{", "}", "\"outstanding\"", "outstanding", ":", ",", " ", "\n", "1", "-1", "1e999", "0x10", "cpu", "\"cpu\"", "0.5", "[", "null",
		"Active connections:", "server accepts handled requests", "Reading:", "Writing:", "Waiting:", "18446744073709551615", "\x00", "\xff"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(pieces).Draw(t, "pieces"), "")
		have, err := parse([]byte(text))
		if err == nil && (!(have.Outstanding >= 0) || !(have.CPU >= 0 && have.CPU <= 1) || !(have.HasOutstanding || have.HasCPU)) {
			t.Errorf("%q: %+v", text, have)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"outstanding": 12}`))
	f.Add([]byte("outstanding 12\ncpu 0.5"))
	f.Add([]byte("Active connections: 1 \nserver accepts handled requests\n 1 1 1 \nReading: 0 Writing: 1 Waiting: 0 \n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		have, err := parse(text)
		if err == nil && (!(have.Outstanding >= 0) || !(have.CPU >= 0 && have.CPU <= 1)) {
			t.Errorf("%+v", have)
		}
	})
}
