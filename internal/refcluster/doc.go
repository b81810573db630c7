// Package refcluster makes the reference cluster: a cluster whose Calico has
// leaked handles for years, in the form in which Calico and Kubernetes would
// have left it. All of it follows from a Spec, object by object, so that a
// million handles need no memory. Load writes it into etcd before an API
// server starts, for only so can objects be truly old.
package refcluster
