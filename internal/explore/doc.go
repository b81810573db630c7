// Package explore walks through interleavings of Calico, Kubernetes, people
// and IPAM Guard, one request at a time, and looks for one that breaks what
// IPAM Guard promises.
//
// The cluster is a model: a small API server with resource versions, UIDs,
// preconditions, finalizers and admission, and Calico's clients as state
// machines that can be stopped between any two requests. IPAM Guard is not a
// model: sweeper, guard, completer, effector, inventory, verdicts and webhooks
// are the product's own, behind their own interfaces. Nothing runs on
// goroutines or real time, so that a schedule says all there is to say.
package explore
