package webhook

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ipam-guard/ipam-guard/internal/ownership"
)

// stampPointer is the annotation's place as a JSON pointer spells it.
var stampPointer = "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(ownership.StampAnnotation)

// patch is the change as a JSON patch of h, nil when there is none. It is
// written by hand: the parts never vary but for the stamp.
func (c change) patch(h *handle) ([]byte, error) {
	if c.stamp == "" && !c.hold {
		return nil, nil
	}
	out := make([]byte, 0, len(c.stamp)+len(c.stamp)/4+256)
	out = append(out, '[')
	if c.stamp != "" {
		value, err := json.Marshal(c.stamp)
		if err != nil {
			return nil, fmt.Errorf("encode stamp: %w", err)
		}
		// "add" replaces what is there, but never makes a missing parent.
		if h.Metadata.Annotations == nil {
			out = append(out, `{"op":"add","path":"/metadata/annotations","value":{"`+ownership.StampAnnotation+`":`...)
			out = append(append(out, value...), `}}`...)
		} else {
			out = append(append(append(out, `{"op":"add","path":"`...), stampPointer...), `","value":`...)
			out = append(append(out, value...), '}')
		}
	}
	if c.hold {
		if c.stamp != "" {
			out = append(out, ',')
		}
		if h.Metadata.Finalizers == nil {
			out = append(out, `{"op":"add","path":"/metadata/finalizers","value":["`+ownership.Finalizer+`"]}`...)
		} else {
			out = append(out, `{"op":"add","path":"/metadata/finalizers/-","value":"`+ownership.Finalizer+`"}`...)
		}
	}
	return append(out, ']'), nil
}
