// Package calico holds what IPAM Guard knows of Calico's IPAM objects: one Go
// type per kind for both API groups, the grammar of handle IDs, and the rules
// for names.
//
// +kubebuilder:object:generate=true
// +groupName=crd.projectcalico.org
// +versionName=v1
package calico
