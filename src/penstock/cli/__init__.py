"""What a person types: one file a command. A command reads its options, calls the library, and shows what came back."""
