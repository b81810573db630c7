package conditions

import (
	"github.com/ipam-guard/ipam-guard/internal/datastore"
	"github.com/ipam-guard/ipam-guard/internal/feed"
	"github.com/ipam-guard/ipam-guard/internal/inventory"
	"github.com/ipam-guard/ipam-guard/internal/pause"
)

// Facts are those of this moment.
func Facts(inv *inventory.Inventory, f *feed.Feed, lock *datastore.Lock, group *Group) pause.Facts {
	s := inv.Summary()
	facts := pause.Facts{
		Nodes: s.Nodes, Blocks: s.Blocks, CalicoPods: s.CalicoPods, InUse: s.ReferencedHandles, GroupDetail: group.Uncertain(),
	}
	facts.Locked, facts.LockDetail = lock.State()
	for _, c := range f.Conditions() {
		cache := pause.Cache{Resource: c.Resource, Synced: c.Synced, Connected: c.Connected}
		if c.Err != nil {
			cache.Detail = c.Err.Error()
		}
		facts.Caches = append(facts.Caches, cache)
	}
	return facts
}
