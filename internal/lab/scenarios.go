// All scenarios, as `ballast lab list` shows them.
package lab

import "time"

var scenarios = []Scenario{
	{"churn", "servers and load balancers come and go, the key rotates: no connection breaks", 4 * time.Minute, runChurn},
}
