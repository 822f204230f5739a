package machines

import (
	"strings"
	"testing"
)

// requests sends requests until the file "enough" is there, each in a connection of its own, and downloads twice meanwhile.
const requests = `
rm -f enough
for i in 1 2; do curl -s --limit-rate 2M -o /dev/null -w 'download %{http_code} %{size_download}\n' http://198.51.100.10/big & done
all=0
while [ ! -e enough ]; do
  curl -s -o /dev/null -m 10 http://198.51.100.10/ || echo "broken: $?"
  all=$((all + 1))
done
wait
echo "$all requests"
`

// underRequests is a fleet as it is after section 7 of docs/start/first-fleet.md; its client sends requests.
func underRequests(t *testing.T, files ...string) *reader {
	t.Helper()
	r := boot(t, fleet, files...)
	for _, block := range read(t, "../../docs/start/first-fleet.md") {
		if strings.HasPrefix(block.section, "8.") {
			break
		}
		r.follow(block)
	}
	for _, server := range []string{"s1", "s2"} {
		r.on(server, "head -c 60M /dev/zero > /var/www/html/big")
	}
	r.said["client"] = ""
	r.meanwhile.Go(func() { r.on("client", requests) })
	return r
}

// lostNothing ends the requests, and fails the test where one of them, or a download, was not answered as a whole.
func (r *reader) lostNothing() {
	r.Helper()
	r.on("client", "touch enough")
	r.meanwhile.Wait()
	r.Log(r.said["client"])
	if strings.Contains(r.said["client"], "broken") || strings.Count(r.said["client"], "download 200 62914560\n") != 2 {
		r.Error("something was lost")
	}
}
