package e2e

import "testing"

// Promise: When a machine loses its power that is a load balancer, a server and a controller, or all machines but one do, the load balancer that is left
// gives dead servers nothing new once their checks have failed, within 8 s by default, or 10 s where no controller is left that can judge, and says by whose word.
// Also held by TestALoadBalancerThatIsSilentHasNoSay and TestAControllerThatSaysNothingDoesNotCount.
func TestServersThatLosePowerWithALoadBalancerGetNothingNew(t *testing.T) {
	run(t, "power")
}
