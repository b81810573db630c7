// Package ownership says who a handle was made for, and whether that owner is
// alive, gone, or cannot be told.
package ownership
