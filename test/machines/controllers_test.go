package machines

import "testing"

// join makes a controller of a machine that has another role already.
const join = `
echo 'OPTIONS=--data-dir /var/lib/ballast/controller --join 10.0.0.21' > /etc/default/ballast-controller
systemctl enable -q --now ballast-controller
`

// until waits for what ballast ctl prints.
func until(command, wanted string) string {
	return "for i in $(seq 300); do " + command + " 2>&1 | grep -qE '" + wanted + "' && exit 0; sleep 0.1; done; " + command + "; exit 1\n"
}

// Promise: One controller becomes three, one of them dies, and one is left again, while changes go on; no
// connection breaks, and a controller whose disk is lost comes back from a backup.
func TestControllersComeAndGoUnderTraffic(t *testing.T) {
	r := underRequests(t, packaged(t))
	r.on("c1", `ballast ctl pki issue /etc/ballast/authority controller c2 --address 10.0.0.11
ballast ctl pki issue /etc/ballast/authority controller c3 --address 10.0.0.12
scp -q /etc/ballast/authority/c2.crt /etc/ballast/authority/c2.key s1:/etc/ballast/tls/
scp -q /etc/ballast/authority/c3.crt /etc/ballast/authority/c3.key s2:/etc/ballast/tls/`)
	for _, machine := range []string{"s1", "s2"} {
		r.on(machine, join)
	}
	r.on("c1", until("ballast ctl --instance c1 controller list | grep -c 'voter *yes'", "^3$"))
	const nodesOfThree = "--controller 10.0.0.21:6443,10.0.0.11:6443,10.0.0.12:6443"
	for machine, role := range map[string]string{"lb1": "lb", "lb2": "lb", "s1": "agent", "s2": "agent"} {
		r.on(machine, "echo 'SOURCE="+nodesOfThree+"' > /etc/default/ballast-"+role+" && "+
			"if [ "+role+" = lb ]; then echo 'OPTIONS=--interface eth0' >> /etc/default/ballast-lb; fi; systemctl restart ballast-"+role)
	}
	r.on("c1", "kill -9 $(systemctl show -p MainPID --value ballast-controller); systemctl stop ballast-controller")
	r.on("s1", "ballast ctl --instance c2 server weight web s1 3")
	r.on("lb1", until("ballast ctl server list", "s1 .* 3 "))
	r.on("c1", "systemctl start ballast-controller\n"+until("ballast ctl --instance c1 controller list | grep -c 'voter *yes'", "^3$"))
	r.on("c1", "ballast ctl --instance c1 controller remove c3\nballast ctl --instance c1 controller remove c2\nballast ctl --instance c1 server weight web s1 1\n"+
		until("ballast ctl --instance c1 controller list", "^c1 "))
	r.on("lb2", until("ballast ctl server list", "s1 .* 1 "))
	r.on("s1", "systemctl disable -q --now ballast-controller || true")
	r.on("s2", "systemctl disable -q --now ballast-controller || true")
	r.on("c1", `ballast ctl --instance c1 backup fleet.backup
systemctl stop ballast-controller
rm -r /var/lib/ballast/controller
ballast controller restore fleet.backup --data-dir /var/lib/ballast/controller
systemctl start ballast-controller
ballast ctl --instance c1 server weight web s2 2`)
	r.on("lb1", until("ballast ctl server list", "s2 .* 2 "))
	r.lostNothing()
}
