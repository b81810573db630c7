package ownership

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ipam-guard/ipam-guard/internal/calico"
)

// Names that IPAM Guard puts on handles.
const (
	// StampAnnotation holds the creation owner, a Stamp in JSON.
	StampAnnotation = "ipam-guard.io/creation-owner"
	// Finalizer holds a handle that somebody deletes while a block references it.
	Finalizer = "ipam-guard.io/in-use"
)

// stampVersion is the version of the stamp's form that is written.
const stampVersion = 1

// maxStampBytes bounds what is parsed; a stamp is a few hundred bytes.
const maxStampBytes = 4096

// Stamp is the creation owner of a handle: what was known of it when the
// handle was created, completed later with the pod when the handle leaked.
type Stamp struct {
	Version int `json:"v"`
	// Kind is a calico.OwnerKind's name.
	Kind        string `json:"kind"`
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	// UID is the pod's, known only for a completed stamp.
	UID string `json:"uid,omitempty"`
	// Node is the one that the block's affinity named at creation, or for
	// KindNode the node itself. A pod may borrow from another node's block.
	Node string `json:"node,omitempty"`
	// User and Request tell who asked for the handle's creation.
	User    string `json:"user,omitempty"`
	Request string `json:"request,omitempty"`
	// Time is the admission's, in seconds.
	Time time.Time `json:"time,omitzero"`
}

// NewStamp is the stamp that a handle's ID alone allows.
func NewStamp(id calico.HandleID) Stamp {
	s := Stamp{
		Version:     stampVersion,
		Kind:        id.Kind.String(),
		Network:     id.Network,
		ContainerID: id.ContainerID,
		Namespace:   id.Namespace,
		Name:        id.Name,
	}
	if id.Kind == calico.KindNode {
		s.Node, s.Name = id.Name, ""
	}
	return s
}

// Encode is the annotation's value.
func (s Stamp) Encode() string {
	s.Time = s.Time.UTC().Truncate(time.Second)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	// A struct of strings, an int and a time within year 9999 always encodes.
	if err := enc.Encode(s); err != nil {
		return ""
	}
	return string(bytes.TrimRight(buf.Bytes(), "\n"))
}

// ParseStamp reads an annotation's value. A newer version than this build
// knows is an error: half-read evidence is none.
func ParseStamp(value string) (Stamp, error) {
	if value == "" {
		return Stamp{}, errors.New("creation-owner stamp is empty")
	}
	if len(value) > maxStampBytes {
		return Stamp{}, fmt.Errorf("creation-owner stamp is %d bytes, more than %d", len(value), maxStampBytes)
	}
	var s Stamp
	if err := json.Unmarshal([]byte(value), &s); err != nil {
		return Stamp{}, fmt.Errorf("creation-owner stamp is no JSON of the known form: %w", err)
	}
	if s.Version != stampVersion {
		return Stamp{}, fmt.Errorf("creation-owner stamp has version %d, this build reads %d", s.Version, stampVersion)
	}
	if _, ok := calico.ParseOwnerKind(s.Kind); !ok {
		return Stamp{}, fmt.Errorf("creation-owner stamp has unknown kind %q", s.Kind)
	}
	return s, nil
}

// Complete tells whether the stamp names its owner: a sandbox's does so only
// once the pod that leaked the handle was written into it.
func (s Stamp) Complete() bool {
	return s.Kind != calico.KindPodSandbox.String() || s.Name != ""
}
