package kinds

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

// upstreamTables prints kinds as kubectl has always shown them. Making it takes a while, and all kinds share it.
var upstreamTables = sync.OnceValue(func() rest.TableConvertor {
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
})

// printer makes the Tables of v; of name and creation time alone, if it is plain.
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
				return nil // no kind of the table is without a list: a test compares the columns of each
			}
			t, err := tables().ConvertToTable(context.Background(), list, nil)
			if err != nil {
				return nil // nor has one that cannot be printed
			}
			return slices.Clone(t.ColumnDefinitions) // all kinds' columns are shared
		},
		Row: func(obj resource.Internal) (metav1.TableRow, error) {
			t, err := tables().ConvertToTable(context.Background(), obj, &metav1.TableOptions{NoHeaders: true})
			if err != nil {
				return metav1.TableRow{}, fmt.Errorf("builtin: row of %s: %w", v.Definition.Names.Plural, err)
			}
			if len(t.Rows) != 1 {
				return metav1.TableRow{}, fmt.Errorf("builtin: %s printed as %d rows", v.Definition.Names.Plural, len(t.Rows))
			}
			row := t.Rows[0]
			row.Object.Object = nil
			return row, nil
		},
		Empty: func() (resource.Internal, error) {
			obj, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: v.GroupVersion.Group, Version: runtime.APIVersionInternal, Kind: v.Definition.Names.Kind})
			if err != nil {
				return nil, fmt.Errorf("builtin: new object of kind %s: %w", v.Definition.Names.Kind, err)
			}
			return obj.(resource.Internal), nil
		},
	}
}
