package define

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// upstreamTables returns upstream's table printers for all kinds. It is lazy because creating them is slow.
var upstreamTables = sync.OnceValue(func() rest.TableConvertor {
	return printerstorage.TableConvertor{
		TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers),
	}
})

// printer returns the Printer of a version. If plain is true, Tables have only the columns Name and Created At.
func printer(v *resource.Version, plain bool) *resource.Printer {
	tables := upstreamTables
	if plain {
		tables = func() rest.TableConvertor { return rest.NewDefaultTableConvertor(v.GroupResource()) }
	}
	return &resource.Printer{
		Columns: func() []metav1.TableColumnDefinition {
			internal := v.GroupVersion
			internal.Version = runtime.APIVersionInternal
			list, err := legacyscheme.Scheme.New(internal.WithKind(v.Definition.Names.ListKind))
			if err != nil {
				return nil // unreachable: each stored kind has a list, and a test compares the columns of each
			}
			t, err := tables().ConvertToTable(context.Background(), list, nil)
			if err != nil {
				return nil // unreachable, as above
			}
			return slices.Clone(t.ColumnDefinitions) // upstream shares the slice
		},
		Row: func(obj resource.Internal) (metav1.TableRow, error) {
			t, err := tables().ConvertToTable(context.Background(), obj, &metav1.TableOptions{NoHeaders: true})
			if err != nil {
				return metav1.TableRow{}, fmt.Errorf("print row of %s: %w", v.Definition.Names.Plural, err)
			}
			if len(t.Rows) != 1 {
				return metav1.TableRow{}, fmt.Errorf("print row of %s: got %d rows, want 1", v.Definition.Names.Plural,
					len(t.Rows))
			}
			row := t.Rows[0]
			row.Object.Object = nil
			return row, nil
		},
		Empty: func() (resource.Internal, error) {
			obj, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: v.GroupVersion.Group,
				Version: runtime.APIVersionInternal, Kind: v.Definition.Names.Kind})
			if err != nil {
				return nil, fmt.Errorf("create empty object of kind %s: %w", v.Definition.Names.Kind, err)
			}
			return obj.(resource.Internal), nil
		},
	}
}
