package machines

import (
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// untilServed is what a reader does whose first request comes before the VIP is announced.
const untilServed = "for i in $(seq 300); do ! curl -sf -m 1 -o /dev/null http://10.0.0.10/ || break; sleep 0.1; done\n"

// power switches that of a machine.
func (r *reader) power(machine, how string) {
	r.Helper()
	if output, err := exec.Command("./machines", how, machine).CombinedOutput(); err != nil {
		r.Fatalf("%s %s: %v: %s", machine, how, err, output)
	}
}

// served waits until servers, and no others, answer.
func (r *reader) served(servers ...string) {
	r.Helper()
	r.on("client", "for i in $(seq 300); do\n"+
		"  have=$(for j in 1 2 3 4 5 6 7 8; do curl -s -m 2 http://10.0.0.10/ || echo lost; done | sort -u | xargs)\n"+
		"  [[ $have != '"+strings.Join(servers, " ")+"' ]] || exit 0; sleep 0.1\n"+
		"done; echo \"$have answer\"; exit 1")
}

var counted = regexp.MustCompile(`(?m)^ *(\d+) (m1|m2|lost)$`)

// Promise: Following docs/start/two-machines.md on Debian gives a pair of machines of which either serves alone, and leaves by one command.
func TestTwoMachinesAreAsTheDocumentSays(t *testing.T) {
	r := boot(t, "m1 m2 client", packaged(t))
	begin, first := time.Now(), time.Duration(0)
	cut, dark := "", false // machine that has lost its power
	for _, block := range read(t, "../../docs/start/two-machines.md") {
		switch {
		case strings.HasPrefix(block.section, "4.") && first == 0:
			r.on("client", untilServed)
			r.follow(block)
			first = time.Since(begin)
		case strings.HasPrefix(block.commands, "poweroff"): // the rig's switch: a container cannot cut its own
			cut, dark = block.machines[0], true
			r.on("client", "sleep 1") // requests come meanwhile
			r.power(cut, "off")
		default:
			if dark {
				r.meanwhile.Wait()
				r.served("m1")
				r.power(cut, "on")
				r.served("m1", "m2")
				dark = false
			}
			r.follow(block)
		}
	}
	t.Logf("from the first command to answers of both servers: %.1f s", first.Seconds())
	if !strings.Contains(r.said["m1"], "\n0 problems") {
		t.Errorf("doctor on m1: %s", r.said["m1"])
	}
	said := r.said["client"]
	for _, server := range []string{"m1\n", "m2\n"} {
		if !strings.Contains(said, server) {
			t.Errorf("the client had no answer of %s", server)
		}
	}
	answers := map[string]int{}
	for _, found := range counted.FindAllStringSubmatch(said, -1) {
		n, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		answers[found[2]] += n
	}
	if all := answers["m1"] + answers["m2"] + answers["lost"]; cut != "m2" || all != 300 || answers["lost"] > all/10 {
		t.Fatalf("%q lost its power: %v of %d: %s", cut, answers, all, said)
	}
	t.Logf("requests while m2 lost its power:\n%s", said)
	r.power("m1", "off") // with the controller
	r.served("m2")
	r.power("m1", "on")
	r.served("m1", "m2")
	r.on("m1", "ballast ctl --instance c1 node list; ballast ctl --instance c1 server weight web s1 2\n"+until("ssh m2 ballast ctl server list", "s1 .* 2 "))
	r.on("m2", "ballast leave --yes\n! systemctl is-enabled ballast-lb ballast-agent\n[[ -z $(ls /etc/default/ballast-* /etc/ballast/tls/* 2>/dev/null) ]]")
	r.served("m1")
}
